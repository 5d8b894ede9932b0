"""Grafana dashboards as plain values, and the JSON they become."""
