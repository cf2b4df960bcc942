"""Report to operators: logs, Prometheus metrics and OpenTelemetry spans."""
