# syntax=docker/dockerfile:1
# SPDX-License-Identifier: Apache-2.0
# gpucast and its benchmark. CUDA comes from Python packages, the driver from the NVIDIA container toolkit.
#
#   docker build --build-arg COMMIT="$(git describe --always --abbrev=12 --dirty=+)" -t gpucast .
#   mkdir -p results
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD/results:/results" gpucast
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/results:/results" gpucast --allow-cpu   # without a GPU

ARG PYTHON=3.12
# The CUDA major, 12 or 13: at most the one that the driver runs.
ARG CUDA=12

FROM python:${PYTHON}-slim AS packages
ARG CUDA
# Rivals for the benchmark, several GB each, for the same CUDA: such as "torch" or "torch jax[cuda13]" with CUDA=13.
ARG RIVALS=""
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_SYSTEM_PYTHON=1
WORKDIR /gpucast
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --root-user-action=ignore "uv==0.13.*"
# Not yet gpucast itself, so that a change of it leaves this layer as it is.
COPY pyproject.toml ./
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/uv \
    uv pip install -r pyproject.toml --extra bench --extra "cuda${CUDA}" ${RIVALS}

FROM packages AS compiler
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# The host's loops, for every level of processors.
FROM compiler AS host
COPY kernels kernels
COPY gpucast gpucast
RUN python -m gpucast.host.build --levels all

# The tests build the kernels for the host, too.
FROM compiler AS test
ARG CUDA
RUN --mount=type=cache,target=/root/.cache/uv \
    uv pip install -r pyproject.toml --extra test --extra "cuda${CUDA}"
# --chmod, here and below: for any user to read, whatever the umask of the checkout.
COPY --chmod=755 . .
RUN --mount=type=cache,target=/root/.cache/uv \
    uv pip install --no-deps --editable . \
    && chmod 1777 .
ENV HOME=/tmp
USER 1000:1000
ENTRYPOINT ["python", "-m", "pytest", "-p", "no:cacheprovider"]
CMD ["-n", "auto"]

FROM packages AS bench
COPY README.md LICENSE ./
COPY --chmod=755 kernels kernels
COPY --chmod=755 gpucast gpucast
COPY --chmod=755 --from=host /gpucast/gpucast/_host.abi3.so gpucast/_host.abi3.so
# What is compiled ahead of time: all casts between these types. Other kernels are compiled when they are first needed.
ARG TYPES="FLOAT FLOAT16 BFLOAT16 FLOAT8E4M3FN FLOAT8E5M2 FLOAT4E2M1 INT8 INT4"
ARG ARCHS="sm_80 sm_90 sm_100a"
# More of them, such as "--fused --many --transposed --quantize mxfp8e4m3 nvfp4" (see `gpucast warmup --help`).
ARG WARMUP=""
# Root's, for all to read. What is compiled later goes to a folder of each user's own, named by his number: nobody is
# given what another user compiled.
ENV GPUCAST_CACHE_READ=/var/cache/gpucast
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/uv \
    GPUCAST_NO_HOST=1 uv pip install --no-deps --editable . \
    && GPUCAST_CACHE_DIR="${GPUCAST_CACHE_READ}" gpucast warmup --types ${TYPES} --arch ${ARCHS} ${WARMUP} \
    && chmod -R u=rwX,go=rX "${GPUCAST_CACHE_READ}" \
    && install --directory --mode=1777 /var/cache/gpucast-users /results
ENV GPUCAST_CACHE_DIR=/var/cache/gpucast-users
COPY --chmod=755 bench bench
# The commit that results name.
ARG COMMIT=""
# Any user can run this image: --user makes results belong to whoever asked for them. HOME is for the caches of drivers
# and compilers, USER for those that ask who they run for.
ENV GPUCAST_COMMIT=${COMMIT} HOME=/tmp USER=gpucast
USER 1000:1000
ENTRYPOINT ["python", "-m", "bench", "--results", "/results"]
