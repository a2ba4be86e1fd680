#!/bin/sh
# Random requests, valid and invalid, against the OpenAPI document of a running server: no answer may be a server error or
# differ from what the document says.
#
#   python3 -m venv /tmp/schemathesis && /tmp/schemathesis/bin/pip install schemathesis
#   cargo run -- serve --port 8123 &
#   PATH=/tmp/schemathesis/bin:$PATH tools/serve/schemathesis.sh http://127.0.0.1:8123
#
# Streams are left out: they end when somebody hangs up. So is the GPU's status: without a GPU it is 503, as documented.
set -eu
# Its cache belongs nowhere in particular.
cd "$(mktemp -d)"
server=${1:-http://127.0.0.1:8000}
examples=${2:-60}
exec schemathesis run "$server/api/openapi.json" \
    --max-examples "$examples" --seed 1 --phases examples,coverage,fuzzing --workers 1 --request-timeout 30 \
    --exclude-path-regex '(stream|events|nvml/status)$' \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection
