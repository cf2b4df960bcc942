{{- define "headrace.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What tells the pods of one install from all others. */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "headrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "headrace.selector" . }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headrace.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "headrace.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "headrace.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headrace.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "headrace.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "headrace.tlsSecret" -}}
{{- default (printf "%s-tls" (include "headrace.fullname" .)) .Values.tls.secretName -}}
{{- end -}}

{{/* A quantity of the form 8Gi or 512Mi in MiB. */}}
{{- define "headrace.mib" -}}
{{- if hasSuffix "Gi" . -}}
{{- trimSuffix "Gi" . | int | mul 1024 -}}
{{- else -}}
{{- trimSuffix "Mi" . | int -}}
{{- end -}}
{{- end -}}

{{/*
Memory of a server in MiB (docs/limits.md), and some 10 % more: what it takes itself, the cache,
reads that are under way, payloads, and 4 for each stream.
*/}}
{{- define "headrace.memory" -}}
{{- $cache := include "headrace.mib" .cache | int -}}
{{- $wanted := add 195 $cache 192 .payload (mul .streams 4) -}}
{{- div (mul $wanted 11) 10 | add 64 (include "headrace.mib" (default "0Mi" .extra) | int) -}}
{{- end -}}

{{/* Payloads of all streams in MiB: 10 for each, with batches of 1 MiB. */}}
{{- define "headrace.payload" -}}
{{- mul .Values.servers.streams 10 -}}
{{- end -}}

{{/* Of a sidecar: two streams a rank, and a ring of 128 MiB a rank. */}}
{{- define "headrace.sidecarPayload" -}}
{{- mul .Values.sidecar.ranks 148 -}}
{{- end -}}

{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The server as a native sidecar: it is ready before the trainer starts and ends after it. */}}
{{- define "headrace.sidecar" -}}
name: headrace
image: {{ include "headrace.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
restartPolicy: Always
args: [serve, --config, /etc/headrace/headrace.yaml]
env:
  # The image's own values, which listen on the network, win over the file.
  - {name: HEADRACE_LISTEN, value: "unix:/run/headrace/server.sock"}
  - {name: HEADRACE_HEALTH_LISTEN, value: "unix:/run/headrace/health.sock"}
envFrom:
  - secretRef: {name: {{ .Values.store.secretName }}, optional: true}
startupProbe:
  exec: {command: [headrace, health, "unix:/run/headrace/health.sock"]}
  periodSeconds: 2
  timeoutSeconds: 10
  failureThreshold: 60
livenessProbe:
  # Seldom and long: each is a process of its own, beside a trainer that is busy.
  exec: {command: [headrace, health, "unix:/run/headrace/health.sock", --service, /live]}
  periodSeconds: 60
  timeoutSeconds: 20
  failureThreshold: 3
{{- $memory := include "headrace.memory" (dict "cache" .Values.sidecar.memory "payload" (include "headrace.sidecarPayload" . | int) "streams" (mul 2 .Values.sidecar.ranks)) }}
resources:
  requests: {cpu: {{ .Values.sidecar.cpu | quote }}, memory: {{ $memory }}Mi, ephemeral-storage: 256Mi}
  limits: {memory: {{ $memory }}Mi, ephemeral-storage: 512Mi}
securityContext:
  {{- include "headrace.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: headrace-config, mountPath: /etc/headrace, readOnly: true}
  - {name: headrace-socket, mountPath: /run/headrace}
  - {name: headrace-tmp, mountPath: /tmp}
{{- end -}}

{{- define "headrace.sidecarVolumes" -}}
- name: headrace-config
  configMap: {name: {{ include "headrace.fullname" . }}-sidecar}
- name: headrace-socket
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: headrace-tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}
