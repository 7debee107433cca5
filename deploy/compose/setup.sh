#!/bin/sh
# Fills the folders of secrets of deploy/compose.yaml, once: certificates, tokens, the controller's configuration, and a password for Grafana.
# Usage: setup.sh FOLDER. Needs root, to give each service its own files. It overwrites nothing.
set -eu
umask 077
folder=$1
rankmend=${RANKMEND:-/opt/rankmend/bin/rankmend}
service=${RANKMEND_UID:-10001} # the user of our image
prometheus=65534               # nobody, in the images of Prometheus and Alertmanager
grafana=472                    # in Grafana's image
controller=$folder/controller

if [ -e "$controller/controller.toml" ]; then
    echo "setup: $controller/controller.toml is there already; remove the volumes to begin anew" >&2
    exit 1
fi
mkdir -p "$controller" "$folder/prometheus" "$folder/alertmanager" "$folder/grafana"

"$rankmend" controller init "$controller" --host controller.example --host localhost
tokens=$controller/tokens.toml
"$rankmend" controller token add prometheus --role fleet-read --tokens-file "$tokens" --output "$folder/prometheus/rankmend.token"
"$rankmend" controller token add alertmanager --role alert --tokens-file "$tokens" --output "$folder/alertmanager/rankmend.token"
for one in prometheus alertmanager; do
    cp "$controller/ca.crt" "$folder/$one/rankmend-ca.crt"
done

# Paths as the controller's container sees them, the Alertmanager, and the agent that runs beside it.
sed -i \
    -e "s|$controller|/etc/rankmend/controller|g" \
    -e 's|^#urls = .*|urls = ["http://alertmanager.example:9093"]|' \
    -e 's|^#receiver = .*|receiver = "rankmend-controller"|' \
    -e '/^\[discovery\]/,/^\[/ s|^#nodes = .*|nodes = ["node-1"]|' \
    -e 's|^#cluster = .*|cluster = "compose"|' \
    "$controller/controller.toml"

head -c 24 /dev/urandom | base64 | tr -d '\n' >"$folder/grafana/admin-password"

chown -R "$service:$service" "$controller"
chown -R "$prometheus:$prometheus" "$folder/prometheus" "$folder/alertmanager"
chown -R "$grafana:0" "$folder/grafana"
echo "setup: done; start the services with: docker compose -f deploy/compose.yaml up -d"
