# Both stages have the same release of Debian, because the program uses the C library of the first.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM debian:bookworm-slim
# For stores that speak https.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/labelmill /usr/local/bin/
USER 1000
WORKDIR /work
ENTRYPOINT ["labelmill"]
