"""Templates of labels and annotations."""

from __future__ import annotations

import time

import pytest

from sre.monitoring.lint.template import read


@pytest.mark.parametrize(
    "text",
    [
        "plain text", "{{ $value | humanize }} of {{ $labels.node }}", "{{ if gt $value 3.0 }}x{{ else }}y{{ end }}",
        "{{- $value | printf \"%.1f\" -}}", "{{ with query \"up\" }}{{ . | first | value | humanize }}{{ end }}",
        "{{ range $i, $e := query \"up\" }}{{ $e.Labels.a }}{{ else }}none{{ end }}", "{{/* a comment */}}",
        "{{ $x := $labels.a }}{{ $x }}", "{{ index $labels \"a\" | toUpper }}", "{{ .Labels.a }}",
        "{{ .Value | humanize }}",
        "{{ $externalLabels.cluster }} {{ $externalURL }}", "{{ \"}}\" }}", "{{ `{{` }}", "a }} b",
        "{{ if $labels.a }}{{ else if $labels.b }}{{ end }}", "{{ template \"x\" . }}",
        "{{ printf \"sum(x{job='%s'})\" $labels.job | query | first | value }}",
    ],
)  # fmt: skip
def test_valid(text: str) -> None:
    assert read(text).problems == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ $labels.a", "not closed"), ("{{ end }}", "closes nothing"), ("{{ if $value }}x", "is not closed with"),
        ("{{ humanise $value }}", "did you mean humanize?"), ("{{ $valeu }}", "did you mean $value?"),
        ("{{ labels.a }}", "write $labels"), ("{{ }}", "empty"), ("{{ $value | }}", "no function"),
        ("{{ ($value }}", "not balanced"), ("{{ .Foo }}", "there is no .Foo"),
        ("{{ if }}x{{ end }}", "nothing to print"),
        ("{{ else }}", "outside"), ("{{ $value ? }}", "no part of a template"),
    ],
)  # fmt: skip
def test_invalid(text: str, problem: str) -> None:
    assert problem in " ".join(read(text).problems)


def test_labels_and_value() -> None:
    found = read(
        '{{ $labels.a }} {{ .Labels.b }} {{ index $labels "c" }} {{ range query "up" }}{{ .Labels.d }}{{ end }}'
    )
    assert found.labels == ("a", "b", "c")
    assert not found.uses_value
    assert read("{{ $value }}").raw_value
    assert not read("{{ $value | humanizePercentage }}").raw_value
    assert not read("{{ if gt $value 1.0 }}many{{ end }}").raw_value


@pytest.mark.parametrize(
    "text", ["{{" * 10_000, '{{ "' + "a" * 30_000, '{{ "a" ' * 4_000, "{{ " + "(" * 5_000 + " }}", "{{ /* a" * 4_000]
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    read(text)
    assert time.process_time() - began < 1
