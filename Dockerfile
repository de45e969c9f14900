# The sample controller with its webhook. Build it from the root of the repository: docker build -t IMAGE .
# VERSION and REVISION are build arguments for the labels of the image.

FROM docker.io/library/rust:1.95.0-bookworm AS build
# The image's own toolchain, rather than the one that rust-toolchain.toml would have rustup download.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
COPY . .
# The builder keeps what cargo downloads and compiles in caches, so that a second build compiles only what changed. A cache
# is not part of a layer: the programs are copied out of it in the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --profile deploy --package reknit-samples --bin controller && \
    install -t /usr/local/bin target/deploy/controller

# glibc, certificates and time zones; no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="reknit sample controller" \
      org.opencontainers.image.description="The sample controllers of reknit and their webhook" \
      org.opencontainers.image.source="https://github.com/reknit/reknit" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /usr/local/bin/controller /
# The program writes nothing but CPU profiles, to /tmp, and runs as any other user too.
USER 65532:65532
ENTRYPOINT ["/controller"]
