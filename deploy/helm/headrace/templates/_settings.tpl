{{/* The settings of a server (docs/operations.md): those that follow from values, then `settings`. */}}
{{- define "headrace.settings" -}}
{{- $any := "0.0.0.0" -}}
{{- $made := dict
  "listen" (list (printf "%s:%v" $any .Values.ports.grpc))
  "health_listen" (printf "%s:%v" $any .Values.ports.health)
  "metrics_listen" (printf "%s:%v" $any .Values.ports.metrics)
  "cache_bytes" (printf "%vMiB" (include "headrace.mib" .Values.cache.memory))
  "max_streams" (int .Values.servers.streams)
  "payload_bytes" (printf "%vMiB" (include "headrace.payload" .))
  "drain_s" 30
  "log_format" "json"
  "datasets" .Values.datasets -}}
{{- if ne .Values.cache.disk.type "none" -}}
{{- $_ := set $made "cache_dir" "/cache" -}}
{{- /* A tenth of the volume is left to its file system. */ -}}
{{- $_ := set $made "cache_dir_bytes" (printf "%vMiB" (div (mul (include "headrace.mib" .Values.cache.disk.size) 9) 10)) -}}
{{- end -}}
{{- if .Values.lane.enabled -}}
{{- $_ := set $made "lane" (.Values.ports.lane | toString) -}}
{{- end -}}
{{- if .Values.page.enabled -}}
{{- /* Without tokens it may be reached through kubectl port-forward alone. */ -}}
{{- $_ := set $made "page" (printf "%s:%v" (.Values.tokens.secretName | empty | ternary "127.0.0.1" $any) .Values.ports.page) -}}
{{- with .Values.page.hosts -}}{{- $_ := set $made "page_hosts" (join "," .) -}}{{- end -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $made "tls_cert" "/etc/headrace-tls/tls.crt" -}}
{{- $_ := set $made "tls_key" "/etc/headrace-tls/tls.key" -}}
{{- if .Values.tls.clientCa.secretName -}}
{{- $_ := set $made "tls_client_ca" (printf "/etc/headrace-client-ca/%s" .Values.tls.clientCa.key) -}}
{{- end -}}
{{- end -}}
{{- if .Values.tokens.secretName -}}
{{- $_ := set $made "tokens" (printf "/etc/headrace-tokens/%s" .Values.tokens.key) -}}
{{- end -}}
{{- with .Values.monitoring.otlpEndpoint -}}{{- $_ := set $made "otlp_endpoint" . -}}{{- end -}}
{{- toYaml (mergeOverwrite $made (deepCopy .Values.servers.settings)) -}}
{{- end -}}

{{- define "headrace.sidecarSettings" -}}
{{- $made := dict
  "listen" (list "unix:/run/headrace/server.sock")
  "health_listen" "unix:/run/headrace/health.sock"
  "ring_uids" (join "," (concat (list "65532") .Values.sidecar.uids))
  "ring_bytes" "128MiB"
  "cache_bytes" (printf "%vMiB" (include "headrace.mib" .Values.sidecar.memory))
  "max_streams" (mul 2 .Values.sidecar.ranks)
  "payload_bytes" (printf "%vMiB" (include "headrace.sidecarPayload" .))
  "drain_s" 10
  "log_format" "json"
  "datasets" .Values.datasets -}}
# The trainer may run as another user than the server; both are in group 65532.
unix_mode: 0o660
{{ toYaml (mergeOverwrite $made (deepCopy .Values.sidecar.settings)) }}
{{- end -}}
