# An image with opt-supervisor, compilers for C and C++, and PyTorch.
#
#     docker build --tag opt-supervisor .
#
# docs/how-to/install.md says how to run it.

FROM rust:1.95-slim-bookworm AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev python3-venv
RUN python3 -m venv /maturin && /maturin/bin/pip install 'maturin>=1.9,<2'
COPY . /src
WORKDIR /src
RUN PATH="/maturin/bin:$PATH" maturin build --release --out /wheels

FROM debian:bookworm-slim
# Kernels in Python need the shared library of the interpreter.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ libc6-dev libpython3.11 python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /wheels /wheels
# Options of pip, such as the index that has PyTorch for the CPU only, which is much smaller.
ARG PIP_OPTIONS=""
RUN python3 -m venv /venv && /venv/bin/pip install --no-cache-dir $PIP_OPTIONS torch numpy /wheels/*.whl
ENV PATH="/venv/bin:$PATH"
WORKDIR /work
ENTRYPOINT ["opt-supervisor"]
