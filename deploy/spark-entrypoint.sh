#!/bin/sh
# What Spark on Kubernetes calls in driver and executor pods; anything else goes to `headrace`.
# Spark's own images have a longer one; this is what a Python job needs of it.
set -eu
export SPARK_HOME="${SPARK_HOME:-$(python3 -c 'import pyspark; print(pyspark.__path__[0])')}"

case "${1:-}" in
driver)
  shift
  exec tini -s -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
    --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@"
  ;;
executor)
  shift
  # Spark numbers its options for Java: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
  env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p' >/tmp/java-options
  set -- java "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME" "$@"
  shift
  exec tini -s -- java @/tmp/java-options "$@"
  ;;
*)
  exec headrace "$@"
  ;;
esac
