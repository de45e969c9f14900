# The sample controller and its webhook. Build it from the root of the repository: docker build -t IMAGE .

FROM docker.io/library/rust:1.95.0-bookworm AS build
# The image's own toolchain, rather than the one that rust-toolchain.toml would have rustup download.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
COPY . .
RUN cargo build --locked --profile deploy --package samples-controller --bin controller --bin webhook

# glibc, certificates and time zones; no shell. The user is 65532.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/deploy/controller /src/target/deploy/webhook /
USER 65532:65532
ENTRYPOINT ["/controller"]
