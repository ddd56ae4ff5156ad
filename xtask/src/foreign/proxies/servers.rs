//! The servers behind the proxies: PostgreSQL, Redis and nginx with HTTP/1.1 and HTTP/2.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::hosts::{Host, Running, until};
use crate::exec::{self, minutes};

/// The port of each server.
pub(super) const POSTGRES: u16 = 5432;
/// The port of Redis.
pub(super) const REDIS: u16 = 6379;
/// The port of nginx for HTTP/1.1.
pub(super) const HTTP: u16 = 8080;
/// The port of nginx for HTTP/2 without TLS.
pub(super) const HTTP2: u16 = 8081;
/// Every port.
pub(super) const PORTS: [u16; 4] = [POSTGRES, REDIS, HTTP, HTTP2];

/// The user that runs PostgreSQL, which refuses to run as root.
const USER: &[&str] = &["--reuid=postgres", "--regid=postgres", "--init-groups"];

/// Starts the servers on this host, with their files in `folder`.
pub(super) fn start(host: &Host, folder: &Path) -> Result<Vec<Running>, String> {
    Ok(vec![postgres(host, folder)?, redis(host, folder)?, nginx(host, folder)?])
}

/// Starts PostgreSQL with the tables of pgbench.
fn postgres(host: &Host, folder: &Path) -> Result<Running, String> {
    let programs = newest(Path::new("/usr/lib/postgresql"))?.join("bin");
    let data = folder.join("postgres");
    let mut make = Command::new("install");
    make.args(["--directory", "--owner=postgres"]).arg(&data);
    exec::quietly(make, minutes(1))?;
    let mut make = Command::new("setpriv");
    make.args(USER).arg(programs.join("initdb")).arg("-D").arg(&data).args(["-A", "trust", "--no-sync"]);
    exec::quietly(make, minutes(2))?;
    let mut serve = host.command("setpriv");
    serve.args(USER).arg(programs.join("postgres")).arg("-D").arg(&data).arg("-k").arg(&data);
    serve.args(["-h", "127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"]);
    let server = host.start(serve, POSTGRES, folder.join("postgres.log"))?;
    // It listens before it serves.
    let serves = || host.run("pg_isready", "-q -h 127.0.0.1").is_ok();
    if !until(Duration::from_secs(60), serves) {
        return Err("PostgreSQL does not serve".into());
    }
    let mut tables = host.command("pgbench");
    tables.args(["-h", "127.0.0.1", "-U", "postgres", "-i", "-q", "postgres"]);
    exec::quietly(tables, minutes(2))?;
    Ok(server)
}

/// Returns the folder with the highest number as its name.
fn newest(folder: &Path) -> Result<std::path::PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let newest = numbers.max().ok_or_else(|| format!("nothing in {}", folder.display()))?;
    Ok(folder.join(newest.to_string()))
}

/// Starts Redis, which keeps nothing on disk.
fn redis(host: &Host, folder: &Path) -> Result<Running, String> {
    let mut serve = host.command("redis-server");
    serve.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--tcp-backlog", "4096"]);
    serve.arg("--dir").arg(folder);
    host.start(serve, REDIS, folder.join("redis.log"))
}

/// Starts nginx with a page of some bytes and one of 1 MiB.
fn nginx(host: &Host, folder: &Path) -> Result<Running, String> {
    let pages = folder.join("pages");
    let path = folder.display();
    let settings = format!(
        "daemon off; master_process off; pid {path}/nginx.pid; error_log {path}/nginx.log;\n\
         events {{ worker_connections 8000; }}\n\
         http {{ access_log off; keepalive_requests 1000000; root {path}/pages;\n\
         client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;\n\
         uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;\n\
         server {{ listen 127.0.0.1:{HTTP} backlog=4096; }}\n\
         server {{ listen 127.0.0.1:{HTTP2} http2 backlog=4096; }} }}\n"
    );
    let written = fs::create_dir_all(&pages)
        .and_then(|()| fs::write(pages.join("index.html"), "hello\n"))
        .and_then(|()| fs::write(pages.join("large"), vec![b'x'; 1 << 20]))
        .and_then(|()| fs::write(folder.join("nginx.conf"), settings));
    written.map_err(|error| format!("cannot write the files of nginx: {error}"))?;
    let mut serve = host.command("nginx");
    serve.arg("-c").arg(folder.join("nginx.conf"));
    host.start(serve, HTTP, folder.join("nginx.out"))
}
