# A node of the network: small, non-root, nothing but Python and the locked dependencies.
# BASE_IMAGE is any Debian 12 (or newer) with python3 >= 3.11 and its venv module.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# A builder that reaches no package index takes wheels from build/wheels (make wheels); the glob may match nothing.
COPY requirements.lock build/wheel[s] /src/wheels/
RUN python3 -m venv /opt/dekube \
 && if ls /src/wheels/*.whl >/dev/null 2>&1; then index="--no-index --find-links /src/wheels"; else index=""; fi \
 && /opt/dekube/bin/pip install --no-cache-dir $index --require-hashes -r /src/wheels/requirements.lock
COPY . /src/
RUN /opt/dekube/bin/pip install --no-cache-dir --no-deps --no-build-isolation --no-index /src \
 && /opt/dekube/bin/pip uninstall -y pip \
 && find /opt/dekube \( -name '__pycache__' -o -path '*/site-packages/*/tests' \) -prune -exec rm -rf {} + \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/dekube/lib
# Compiled here, once: a container's file system is read-only, and else each start and each health check, every few
# seconds, would compile all that it loads.

FROM ${BASE_IMAGE}
RUN useradd --uid 10001 --user-group --create-home --home-dir /home/dekube dekube
COPY --from=build /opt/dekube /opt/dekube
ENV PATH=/opt/dekube/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER dekube
WORKDIR /home/dekube
VOLUME /home/dekube
# 26656 peers, 8545 JSON-RPC and web, 9100 metrics
EXPOSE 26656 8545 9100
STOPSIGNAL SIGTERM
ENTRYPOINT ["dekube"]
CMD ["node", "run", "--home", "/home/dekube"]
