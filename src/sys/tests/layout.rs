//! The structures and numbers of C in the bindings, compared with those of the C compiler.

use std::ffi::OsString;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use crate::status::porting::CmEvent;
use crate::status::{DeviceEvent, WcStatus};
use crate::sys::ffi::every as ffi;
use crate::sys::ffi::{number, reg_dmabuf_mr};
use crate::sys::post::ScatterEntry;

/// A question to both compilers: a name, the answer of Rust, and the C expression.
type Question = (String, i64, String);

/// Size and offsets of structures. A member has its name in Rust, and `as` its name in C where that differs.
macro_rules! structures {
    ($($structure:ident { $($($member:ident).+ $(as $other:literal)?),* $(,)? })*) => {{
        let mut questions: Vec<Question> = Vec::new();
        $(
            let name = stringify!($structure);
            let size = size_of::<ffi::$structure>();
            questions.push((name.into(), size as i64, format!("sizeof(struct {name})")));
            let alignment = align_of::<ffi::$structure>() as i64;
            questions.push((format!("{name} alignment"), alignment, format!("_Alignof(struct {name})")));
            $(
                let member = concat!($(".", stringify!($member)),+).trim_start_matches('.');
                $(let member = if true { $other } else { member };)?
                let offset = offset_of!(ffi::$structure, $($member).+);
                let question = format!("offsetof(struct {name}, {member})");
                questions.push((format!("{name}.{member}"), offset as i64, question));
            )*
        )*
        questions
    }};
}

fn structures() -> Vec<Question> {
    structures! {
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data_invalidated_rkey_union as "imm_data",
            wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, qp_type,
            bind_mw_tso_union as "bind_mw", bind_mw_tso_union.bind_mw.rkey as "bind_mw.rkey",
            bind_mw_tso_union.bind_mw.bind_info as "bind_mw.bind_info",
        }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_mw { context, pd, rkey, handle, type_ as "type" }
        ibv_srq { context, srq_context, pd, handle, events_completed }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data_invalidated_rkey_union as "imm_data", qp_num,
            src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags,
            cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
            alt_port_num, alt_timeout, rate_limit,
        }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops { alloc_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_device_attr {
            fw_ver, node_guid, max_mr_size, vendor_id, vendor_part_id, max_qp, max_qp_wr, device_cap_flags,
            max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap,
            max_mw, max_srq, max_srq_wr, max_srq_sge, max_pkeys, phys_port_cnt,
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, max_msg_sz, pkey_tbl_len, lid, phys_state, link_layer, flags,
            port_cap_flags2,
        }
        ibv_async_event { element, element.cq, element.qp, element.srq, event_type }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe, comp_events_completed, async_events_completed }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, events_completed,
        }
        rdma_event_channel { fd }
        rdma_cm_id {
            verbs, channel, context, qp, route, route.addr.src_addr_union as "route.addr.src_addr",
            route.addr.src_addr_union.src_storage as "route.addr.src_storage",
            route.addr.dst_addr_union.dst_storage as "route.addr.dst_storage", route.path_rec, ps, port_num, event,
            send_cq, recv_cq, srq, pd, qp_type,
        }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        rdma_cm_event { id, listen_id, event, status, param, param.conn.private_data, param.conn.qp_num }
    }
}

fn numbers() -> Vec<Question> {
    let question = |name: String, number: i64| (name.clone(), number, name);
    let mut questions: Vec<_> =
        number::ALL.iter().map(|(name, number)| question((*name).to_owned(), *number)).collect();
    let statuses = WcStatus::ALL.iter().map(|status| ("IBV_WC_", status.name(), status.code()));
    let events = DeviceEvent::ALL.iter().map(|event| ("IBV_EVENT_", event.name(), event.code()));
    let cm_events = CmEvent::ALL.iter().map(|event| ("RDMA_CM_EVENT_", event.name(), event.code()));
    for (prefix, name, number) in statuses.chain(events).chain(cm_events) {
        let name = name.expect("each of them has one");
        questions.push(question(format!("{prefix}{name}"), number.into()));
    }
    questions.push((
        "a kind of event".into(),
        size_of::<u32>() as i64,
        "sizeof(((struct ibv_async_event *)0)->event_type)".into(),
    ));
    questions.push(("an entry".into(), size_of::<ScatterEntry>() as i64, "sizeof(struct ibv_sge)".into()));
    questions
}

/// Returns the name of a type in C.
#[cfg(not(feature = "rdma-sys"))]
fn type_of_c(here: &str) -> String {
    if let Some(pointee) = here.strip_prefix("*mut ") {
        return format!("{} *", type_of_c(pointee));
    }
    if let Some(pointee) = here.strip_prefix("*const ") {
        return format!("const {} *", type_of_c(pointee));
    }
    let known = match here {
        "" | "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "u8" => "uint8_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        structure => return format!("struct {structure}"),
    };
    known.to_owned()
}

/// Returns the questions whether the functions have the parameters and the results of C: 1 is the answer.
#[cfg(not(feature = "rdma-sys"))]
fn signatures() -> Vec<Question> {
    let question = |(name, parameters, result): &(&str, &[&str], &str)| {
        let parameters: Vec<_> = parameters.iter().map(|one| type_of_c(one)).collect();
        let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
        // The header says of the only one of these numbers that is a result in which order its bytes are.
        let result = if *result == "u64" { "__be64".to_owned() } else { type_of_c(result) };
        let declared = format!("{result}({parameters})");
        let expression = format!("__builtin_types_compatible_p(__typeof__({name}), {declared})");
        (format!("{name} as {declared}"), 1, expression)
    };
    crate::sys::ffi::SIGNATURES.iter().map(question).collect()
}

/// The folder with the headers to compare with, if not those of this machine.
const HEADERS: &str = "TOKIO_RDMA_HEADERS";

/// Returns the compiler flags for the folder of the headers; `None`, after a line on standard output, if there are
/// none.
#[expect(clippy::print_stdout, reason = "the line is counted by `cargo xtask test`")]
fn compiler_flags() -> Option<Vec<String>> {
    if let Some(folder) = env::var_os(HEADERS) {
        return Some(vec!["-isystem".into(), folder.into_string().expect("a path in UTF-8")]);
    }
    let output = Command::new("pkg-config").args(["--cflags", "libibverbs", "librdmacm"]).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        println!("skipped: needs pkg-config and the headers of libibverbs and librdmacm");
        return None;
    };
    Some(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
}

/// Returns the output of a C program that prints these expressions, one a line.
fn answers_of_c(flags: &[String], questions: &[Question]) -> Vec<i64> {
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         int main(void) {\n",
    );
    for (_, _, expression) in questions {
        writeln!(program, "    printf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    program.push_str("}\n");
    static PROGRAMS: AtomicU32 = AtomicU32::new(0);
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("tokio-rdma-layout-{}-{number}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, program).unwrap();
    let compiler = env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let compiled = Command::new(compiler).args(flags).arg(&source).arg("-o").arg(&binary).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().unwrap();
    assert!(printed.status.success());
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

// Every declaration of the crate has the layout, the value or the type of the C headers (HW-18).
#[test]
fn structures_numbers_and_functions_are_those_of_c() {
    let Some(flags) = compiler_flags() else { return };
    let mut questions = structures();
    // It has grown. The library fills what it knows, which must not be more than what is here.
    let ports = questions.iter_mut().find(|(name, ..)| name == "ibv_port_attr").expect("its size");
    *ports = (ports.0.clone(), 1, format!("{} <= {}", ports.2, ports.1));
    questions.extend(numbers());
    #[cfg(not(feature = "rdma-sys"))]
    questions.extend(signatures());
    let answers = answers_of_c(&flags, &questions);
    assert_eq!(answers.len(), questions.len());
    let wrong: Vec<String> = questions
        .iter()
        .zip(answers)
        .filter(|((_, here, _), there)| here != there)
        .map(|((name, here, _), there)| format!("{name}: {here} here, {there} in C"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// HW-18, CM-35: what is looked for at run time is what the headers declare, from rdma-core 34 and 31 on. In older headers the names
// stand for nothing, and are declared here.
#[test]
fn runtime_functions_match_those_of_c() {
    let Some(flags) = compiler_flags() else { return };
    // As [`RegDmabufMr`](crate::sys::ffi::RegDmabufMr) and [`EceFunctions`](crate::sys::ffi::EceFunctions) have them.
    let functions = [
        "struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int)",
        "int ibv_query_ece(struct ibv_qp *, struct ibv_ece *)",
        "int ibv_set_ece(struct ibv_qp *, struct ibv_ece *)",
        "int rdma_set_local_ece(struct rdma_cm_id *, struct ibv_ece *)",
        "int rdma_get_remote_ece(struct rdma_cm_id *, struct ibv_ece *)",
    ];
    let questions =
        functions.map(|declared| (declared.to_owned(), 1, format!("({{ extern {declared}; 1; }})")));
    assert_eq!(answers_of_c(&flags, &questions), [1; 5]);
}

#[test]
#[expect(clippy::print_stdout, reason = "the line is counted by `cargo xtask test`")]
fn the_registration_of_a_dmabuf_is_found() {
    // The version in rdma-core 44. That of 34 has it, too.
    let recent = Command::new("pkg-config").args(["--atleast-version=1.14.44", "libibverbs"]).status();
    if !recent.is_ok_and(|status| status.success()) {
        return println!("skipped: needs pkg-config and rdma-core 44 or newer");
    }
    crate::sys::load().expect("it is installed");
    reg_dmabuf_mr().expect("it has the function");
}
