// What Grafana's JSON of a dashboard must look like, from the types of one of its releases: enums as the strings they
// are in JSON, options of each panel by its type, and a Prometheus query where Grafana's types know only its own events.
// "@grafana/schema" and "panelcfg/…" are mapped to a release by the test.
import type * as grafana from "@grafana/schema";
import type { Options as HeatmapOptions } from "panelcfg/heatmap";
import type { Options as StatOptions } from "panelcfg/stat";
import type { FieldConfig as StatesField, Options as StatesOptions } from "panelcfg/statetimeline";
import type { Options as TableOptions } from "panelcfg/table";
import type { Options as LinesOptions } from "panelcfg/timeseries";

type Json<T> = T extends string
  ? `${T}`
  : T extends Array<infer U>
    ? Array<Json<U>>
    : T extends object
      ? { [K in keyof T]: Json<T[K]> }
      : T;

type Field<C> = Omit<grafana.FieldConfigSource, "defaults"> & {
  // Grafana's own type lets any key of a panel's own settings pass.
  defaults: Omit<grafana.FieldConfig, "custom"> & { custom: C };
};
type Target = {
  datasource: grafana.DataSourceRef;
  editorMode: "code" | "builder";
  expr: string;
  format: "time_series" | "table" | "heatmap";
  instant: boolean;
  legendFormat: string;
  range: boolean;
  refId: string;
};
type Of<T extends string, O, C> = Omit<grafana.Panel, "type" | "options" | "fieldConfig" | "targets"> & {
  type: T;
  options: O;
  fieldConfig: Field<C>;
  targets: Target[];
};
type Panel =
  | Of<"timeseries", LinesOptions, grafana.GraphFieldConfig>
  | Of<"stat", Partial<StatOptions>, Record<string, never>>
  | Of<"state-timeline", StatesOptions, Partial<StatesField> & { spanNulls?: boolean }>
  | Of<"heatmap", HeatmapOptions, { scaleDistribution?: grafana.ScaleDistributionConfig }>
  | Of<"table", Partial<TableOptions>, Partial<grafana.TableFieldOptions>>;
type Event = Omit<grafana.AnnotationQuery, "target"> & {
  expr?: string;
  tagKeys?: string;
  target?: { expr: string; interval: string; refId: string };
  textFormat?: string;
  titleFormat?: string;
  useValueForTime?: boolean;
};

export type Dashboard = Json<
  Omit<Partial<grafana.Dashboard>, "panels" | "annotations"> & {
    panels: Array<Panel | (Omit<grafana.RowPanel, "panels"> & { panels: Panel[] })>;
    annotations: { list: Event[] };
  }
>;
