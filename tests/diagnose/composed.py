"""Composed failures: every cause in several framings, and logs that are made to mislead."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

from tests.diagnose.compose import (
    LOAD,
    PRETRAIN,
    SAVE,
    Case,
    banner,
    closing,
    head,
    log,
    one,
    remote_error,
    steps,
    traceback,
    unique_id,
    watchdog,
)  # fmt: skip

GIB = "Tried to allocate {} GiB. GPU {} has a total capacity of 79.11 GiB of which {} GiB is free. Including non-PyTorch memory, this process has {} GiB memory in use. Of the allocated memory {} GiB is allocated by PyTorch, and {} GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"


def oom(rank: int, tried="2.00", free="0.51", used="78.5", allocated="75.10", unused="1.20") -> str:
    return f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. " + GIB.format(
        tried, rank % 8, free, used, allocated, unused
    )


MEMORY = [
    one("oom-capacity", "cuda_oom", head(), steps(), traceback("[rank5]: ", PRETRAIN), oom(5), closing(),
        banner(5, "node-000", 1), rank=5, node="node-000", code=1),
    one("oom-fragments", "cuda_oom_fragmentation", head(), steps(),
        oom(3, tried="4.50", free="1.10", used="77.9", allocated="60.20", unused="15.30"), closing(), rank=3),
    one("oom-small-slack-is-capacity", "cuda_oom", head(), steps(),
        oom(3, tried="0.02", free="0.01", used="79.0", allocated="76.40", unused="0.60"), rank=3),
    one("oom-old-form", "cuda_oom", head(), steps(),
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 74.30 GiB already allocated; "
        "1.20 GiB free; 76.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb "
        "to avoid fragmentation.", banner(0, "node-000", 1), rank=0, code=1),
    one("oom-old-form-fragments", "cuda_oom_fragmentation", head(), steps(),
        "RuntimeError: CUDA out of memory. Tried to allocate 6.00 GiB (GPU 2; 79.15 GiB total capacity; 55.30 GiB already allocated; "
        "1.20 GiB free; 76.00 GiB reserved in total by PyTorch)"),
    one("oom-retried-then-network", "network_ib", head(), oom(3), "[rank3]: retrying with a smaller batch", steps(200, 12),
        "node-001:984:1357 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.13<52110> with error 12, "
        "opcode 0, len 0, vendor err 129", watchdog(0, 20211), node="10.0.0.13", never=("cuda_oom",)),
    one("oom-one-rank-others-time-out-first-in-file", "cuda_oom", head(32), steps(), watchdog(0, 77), watchdog(9, 77), watchdog(17, 77),
        oom(21), rank=21),
    one("oom-in-nccl", "cuda_oom", head(), "node-001:984:1357 [4] include/alloc.h:185 NCCL WARN Cuda failure 2 'out of memory'",
        "[rank12]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled cuda error",
        node="node-001"),
    one("oom-srun-labels", "cuda_oom", [f"{r}: INFO:megatron:building GPT model" for r in range(8)],
        "11: torch.OutOfMemoryError: CUDA out of memory. " + GIB.format("1.00", 3, "0.20", "78.8", "77.00", "0.30"),
        [f"{r}: INFO:megatron:waiting" for r in range(8)], "srun: error: node-001: task 11: Exited with exit code 1",
        "srun: error: node-000: tasks 0-7: Terminated", rank=11, node="node-001", code=1),
    Case("oom-per-rank-files", "cuda_oom", {
        "rank_0.log": log(head(), steps(), watchdog(0, 55, form="guid")),
        "rank_1.log": log(watchdog(1, 55, form="guid")),
        "rank_6.log": log("torch.OutOfMemoryError: CUDA out of memory. " + GIB.format("1.00", 3, "0.20", "78.8", "77.00", "0.30")),
    }, rank=6),
    one("host-oom-cgroup", "host_oom", head(), steps(), "E0304 09:12:44.620000 2606 torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: -9) local_rank: 4 (pid: 14750) of binary: /usr/bin/python3", banner(12, "node-001", -9, 4),
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=11300781.0. Some of your processes may have been killed by the "
        "cgroup out-of-memory handler.", "srun: error: node-001: task 1: Out Of Memory", rank=12, node="node-001", code=137),
    one("host-oom-kernel", "host_oom", steps(), banner(3, "node-004", -9),
        "Mar  4 09:12:40 node-004 kernel: Memory cgroup out of memory: Killed process 3303 (python) total-vm:81234kB, anon-rss:79234kB",
        node="node-004", rank=3, code=137),
    one("host-oom-alloc", "host_oom", head(), "[rank2]: RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 137438953472 bytes. Error code 12 (Cannot allocate memory)", rank=2),
    one("kubernetes-oom", "host_oom", steps(), "pod trainer-3 terminated: OOMKilled (exit code: 137)", code=137),
    one("bare-sigkill", "undetermined", head(), steps(), "E0304 09:12:44.620000 2606 torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: -9) local_rank: 4 (pid: 14750) of binary: /usr/bin/python3", banner(12, "node-001", -9, 4), rank=12, code=137,
        unsure=True),
]  # fmt: skip

STORAGE = [
    one("shm-loader", "shm_full", head(8), steps(), traceback("[rank4]: ", [("/usr/lib/python3/torch/utils/data/dataloader.py", 1130, "_try_get_data")],
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory. Please try to raise your shared memory limit."), rank=4),
    one("shm-nccl", "shm_full", head(8), "node-000:771:771 [3] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "node-000:771:771 [3] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a9Xc3T (size 9637888)",
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, unhandled system error",
        node="node-000"),
    one("disk-quota", "disk_full", head(), steps(), "saving checkpoint at iteration     500 to /home/u/ckpt in torch_dist format",
        traceback("[rank9]: ", SAVE, "OSError: [Errno 122] Disk quota exceeded"), rank=9),
    one("disk-writer-first", "disk_full", head(), "saving checkpoint at iteration     500 to /fsx/a in torch_dist format",
        "[rank2]: RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598",
        "[rank5]: OSError: [Errno 28] No space left on device: '/fsx/a/iter_0000500/__5_0.distcp'", accept=("ckpt_save",)),
    one("uv-cache", "cache_full", "+ uv sync", "error: Failed to install: nvidia_cudnn-9.10.2.21-py3-none-manylinux_2_27_x86_64.whl",
        "  Caused by: failed to copy file from /root/.cache/uv/archive-v0/x: No space left on device (os error 28)",
        "srun: error: node-003: task 3: Exited with exit code 2", code=2, node="node-003"),
    one("pip-cache", "cache_full", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"),
    one("hub-cache", "cache_full", "[rank0]: OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub/models--x/blobs/ab.incomplete'", rank=0),
    one("save-io-error", "ckpt_save", head(), steps(), "saving checkpoint at iteration     500 to /ckpt in torch_dist format",
        traceback("[rank7]: ", SAVE, "OSError: [Errno 5] Input/output error"), rank=7),
    one("save-async-worker", "ckpt_save", head(), steps(), "ERROR:megatron.core.dist_checkpointing.strategies.filesystem_async:An error is caught "
        "while starting worker 3, error: [Errno 5] Input/output error"),
    one("save-never-ends", "ckpt_save", head(64), steps(), "saving checkpoint at iteration    1000 to /ckpt in torch_dist format",
        watchdog(0, 70211, "GATHER", 1), watchdog(4, 70211, "GATHER", 1), accept=("undetermined", "hang_process"), unsure=True),
    one("load-size-mismatch", "ckpt_load", head(), " loading distributed checkpoint from /ckpt at iteration 1200",
        traceback("[rank1]: ", LOAD, "RuntimeError: Error(s) in loading state_dict for GPTModel:",
                  "\tsize mismatch for embedding.word_embeddings.weight: copying a param with shape torch.Size([32000, 4096])"), rank=1),
    one("load-missing-dir", "ckpt_load", "[rank0]: megatron.core.dist_checkpointing.core.CheckpointingException: Checkpoint directory /ckpt/iter_9 does not exist", rank=0),
    one("load-pickle", "ckpt_load", head(), traceback("[rank3]: ", LOAD, "_pickle.UnpicklingError: invalid load key, '\\x0a'."), rank=3),
    one("load-safetensors", "ckpt_load", traceback("[rank0]: ", [("/opt/bridge/models/conversion/auto_bridge.py", 88, "load_hf_weights")],
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"), rank=0),
    one("load-generic-in-phase", "ckpt_load", head(), " loading checkpoint from /ckpt at iteration 400", "[rank2]: KeyError: 'optimizer'", rank=2),
]  # fmt: skip

NETWORK = [
    one("ib-three-peers", "network_ib", head(64), steps(), [
        f"node-00{n}:984:1357 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer {peer}<44206> with error 12, opcode 1, len 0, vendor err 129"
        for n, peer in ((1, "10.0.0.19"), (2, "10.0.0.19"), (3, "10.0.0.7"), (5, "10.0.0.19"))], remote_error(12), remote_error(13),
        node="10.0.0.19"),
    one("ib-modify-qp", "network_ib", head(), "node-006:984:1357 [4] misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        remote_error(3), node="node-006"),
    one("ib-memlock", "network_ib", "node-006:984:1357 [4] misc/ibvwrap.cc:200 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        never=("host_oom",)),
    one("ib-port-down-kernel", "network_ib", steps(), "Mar  4 09:12:40 node-007 kernel: mlx5_core 0000:1a:00.0 ibp26s0: Link down",
        watchdog(0, 5), watchdog(1, 5), node="node-007"),
    one("efa", "network_ib", steps(), "node-001:984:1357 [4] NCCL WARN NET/OFI Request 0x7f00 completed with error. RC: 113. Error: 4102 (Remote peer "
        "unreachable)", remote_error(9)),
    one("harmless-ib-notes-then-python", "python_error", "node-000:771:771 [0] NCCL INFO NET/IB : No device found.",
        "node-000:771:771 [0] transport/net_ib.cc:120 NCCL WARN NET/IB : Got async event : GID table change", head(), steps(),
        traceback("[rank6]: ", PRETRAIN, "ValueError: Tried to set a negative learning rate"), remote_error(0), rank=6),
    one("flap-survived-then-oom", "cuda_oom", "node-003:2210:2293 [2] misc/ibvwrap.cc:252 NCCL WARN NET/IB : Got async event : port error", head(),
        steps(100, 40), oom(2), rank=2, never=("network_ib",)),
    one("socket-interface", "network_socket", "node-004:771:771 [0] bootstrap.cc:135 NCCL WARN Bootstrap : no socket interface found", remote_error(3)),
    one("socket-no-route", "network_socket", "node-004:771:1020 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.12<38111> failed : No route to host",
        node="node-004"),
    one("socket-retries", "network_socket", "node-004:771:1020 [0] misc/socket.cc:567 NCCL WARN socketPollConnect: Connect to 10.0.0.12<38111> "
        "returned 110(Connection timed out) errno 115(Operation now in progress), exceeded error retry count (35)"),
    one("gloo-mesh", "network_socket", "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"),
    one("peer-closed-only", "undetermined", head(), steps(), remote_error(4), remote_error(5), unsure=True),
    one("port", "port_in_use", "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address.",
        traceback("", [("/usr/lib/python3/torch/distributed/run.py", 806, "main")],
                  "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. useIpv6: 0, code: -98, "
                  "name: EADDRINUSE, message: address already in use"), "srun: error: node-000: tasks 1-7: Exited with exit code 1", code=1),
    one("port-agent-store-harmless", "python_error", "[I socket.cpp] The server socket on [node]:29500 has failed to bind (errno: 98 - Address already in "
        "use). TORCHELASTIC_USE_AGENT_STORE is enabled so ignoring the error.", head(), steps(), traceback("[rank1]: ", PRETRAIN,
        "IndexError: list index out of range"), rank=1),
    one("rdzv-clients", "rendezvous", "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 15/16 clients joined.", code=1),
    one("rdzv-name", "rendezvous", "[W socket.cpp:697] [c10d] The IPv6 network addresses of (node-0x3, 29500) cannot be retrieved (gai error: -2 - Name or "
        "service not known).", "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (node-0x3, 29500)."),
    one("rdzv-retries-harmless", "python_error", ["[W socket.cpp:663] [c10d] The client socket has failed to connect to [node-000]:29500 (errno: 111 - "
        "Connection refused)." for _ in range(4)], head(), steps(), traceback("[rank2]: ", PRETRAIN, "RuntimeError: shape '[4, 512]' is invalid for "
        "input of size 1024"), rank=2),
]  # fmt: skip

HARDWARE = [
    one("xid-79", "gpu_hardware", steps(), "Mar  4 09:12:40 node-005 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=3301, name=python, GPU has fallen off the bus.",
        "[rank41]: RuntimeError: CUDA error: unknown error", node="node-005"),
    one("xid-94", "gpu_hardware", steps(), watchdog(0, 7), "[1187.32] node-005 kernel: NVRM: Xid (PCI:0000:4e:00): 94, pid=3301, Contained: SM (0x1). RST: No"),
    one("xid-31-is-the-program", "native_crash", steps(), "node-005 kernel: NVRM: Xid (PCI:0000:4e:00): 31, pid=3301, name=python, Ch 00000008, intr 00000000. MMU Fault",
        "[rank41]: RuntimeError: CUDA error: an illegal memory access was encountered", never=("gpu_hardware",)),
    one("xid-45-follows", "cuda_oom", steps(), oom(9), "node-001 kernel: NVRM: Xid (PCI:0000:4e:00): 45, pid=3301, name=python, Ch 00000018", rank=9),
    one("xid-63-is-a-notice", "python_error", "node-001 kernel: NVRM: Xid (PCI:0000:4e:00): 63, pid=3301, Row Remapper: New row marked for remapping", steps(),
        traceback("[rank1]: ", PRETRAIN, "ZeroDivisionError: division by zero"), rank=1, never=("gpu_hardware",)),
    one("ecc-and-cascade", "gpu_hardware", steps(), "[rank12]:[E304 09:12:34.227531918 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] Process group "
        "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered", watchdog(0, 9, form="guid"),
        banner(12, "node-001", -6, 4), rank=12, node="node-001", code=134),
    one("fabric-manager", "nvlink_fabric", "RuntimeError: CUDA error: system not yet initialized", accept=("gpu_hardware",)),
    one("sxid", "nvlink_fabric", steps(), "Mar  4 09:12:40 node-009 kernel: nvidia-nvswitch3: SXid (PCI:0000:a1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up",
        watchdog(3, 8), watchdog(4, 8), node="node-009"),
    one("nvlink-74", "nvlink_fabric", steps(), "node-009 kernel: NVRM: Xid (PCI:0000:4e:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6"),
    one("segfault", "native_crash", steps(), "[node-002:14750:0:14750] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))",
        banner(17, "node-002", -11, 1), rank=17, node="node-002", code=139),
    one("segfault-exit-only", "native_crash", steps(), banner(17, "node-002", -11, 1), rank=17, node="node-002", code=139),
    one("segfault-srun", "native_crash", steps(), "srun: error: node-002: task 17: Segmentation fault (core dumped)",
        "srun: error: node-000: tasks 0-7: Terminated", rank=17, node="node-002", code=139),
    one("double-free", "native_crash", steps(), "double free or corruption (!prev)", banner(2, "node-000", -6), rank=2, code=134),
]  # fmt: skip

SCHEDULER = [
    one("time-limit", "time_limit", head(), steps(), "slurmstepd: error: *** JOB 733105 ON node-000 CANCELLED AT 2026-03-04T09:13:41 DUE TO TIME LIMIT ***",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        traceback("[rank3]: ", PRETRAIN, "KeyboardInterrupt"), "srun: error: node-001: task 1: Exited with exit code 143", code=143),
    one("time-limit-step", "time_limit", steps(), "slurmstepd: error: *** STEP 733105.0 ON node-000 CANCELLED AT 2026-03-04T09:13:41 DUE TO TIME LIMIT ***",
        "srun: error: node-001: task 1: Terminated", code=143),
    one("teardown-traceback-after-limit", "time_limit", steps(), "slurmstepd: error: *** JOB 9 ON node-000 CANCELLED AT 2026-03-04T09:13:41 DUE TO TIME LIMIT ***",
        traceback("[rank3]: ", [("/usr/lib/python3/torch/utils/data/dataloader.py", 1284, "_get_data")],
                  "RuntimeError: DataLoader worker (pid(s) 2637) exited unexpectedly"),
        traceback("[rank5]: ", PRETRAIN, "ConnectionResetError: [Errno 104] Connection reset by peer"), accept=("preempted",)),
    one("preempted", "preempted", head(), steps(), "slurmstepd: error: *** JOB 81234 ON node-004 CANCELLED AT 2026-03-04T11:20:31 DUE TO PREEMPTION ***",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", closing(), "srun: error: node-005: task 1: Exited with exit code 143", code=143),
    one("sigterm-only", "preempted", head(), steps(), "W0304 17:39:41.932000 293812 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, "
        "shutting down workers", closing(), accept=("time_limit", "undetermined"), unsure=True),
    one("megatron-sigterm", "preempted", steps(), "[exiting program after receiving SIGTERM.] datetime: 2026-03-04 09:14:12 ", accept=("time_limit",), unsure=True),
    one("node-fail", "node_fail", head(), steps(), "srun: error: Node failure on node-017", "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "slurmstepd: error: *** JOB 8 ON node-000 CANCELLED AT 2026-03-04T09:13:41 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        closing(), remote_error(3), node="node-017"),
    one("node-fail-after-symptoms", "node_fail", head(), steps(), remote_error(3), remote_error(4),
        "slurmstepd: error: *** JOB 8 ON node-000 CANCELLED AT 2026-03-04T09:13:41 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    one("hang-until-limit", "nccl_all_ranks_network", head(4, 1), steps(), [line for r in range(4) for line in watchdog(r, 42, form="guid", at="09:41")],
        "slurmstepd: error: *** JOB 9 ON node-000 CANCELLED AT 2026-03-04T12:13:41 DUE TO TIME LIMIT ***", unsure=True),
    one("failed-before-limit", "python_error", steps(), traceback("[rank3]: ", PRETRAIN, "AssertionError: unexpected sequence length"), closing(),
        "slurmstepd: error: *** JOB 9 ON node-000 CANCELLED AT 2026-03-04T12:13:41 DUE TO TIME LIMIT ***", rank=3),
    one("step-cancelled-is-teardown", "undetermined", steps(), "srun: error: node-001: task 9: Exited with exit code 1", "srun: Terminating StepId=9.0",
        "slurmstepd: error: *** STEP 9.0 ON node-000 CANCELLED AT 2026-03-04T12:13:41 ***", "srun: error: node-000: tasks 0-7: Terminated", code=1, unsure=True),
]  # fmt: skip

SOFTWARE = [
    one("import-activations", "import_conflict", traceback("[rank0]: ", [("/opt/bridge/train.py", 12, "<module>")],
        "ModuleNotFoundError: No module named 'megatron.core.activations'"), "srun: error: node-000: task 0: Exited with exit code 1", rank=0, code=1),
    one("abi", "import_conflict", "ImportError: /usr/local/lib/python3.12/dist-packages/transformer_engine_torch.cpython-312-x86_64-linux-gnu.so: undefined symbol: "
        "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"),
    one("glibc", "import_conflict", "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /opt/x.so)"),
    one("numpy-abi", "import_conflict", "[rank1]: ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject", rank=1),
    one("apex-warning-is-harmless", "python_error", "WARNING: ModuleNotFoundError: No module named 'apex', falling back", head(), steps(),
        traceback("[rank1]: ", PRETRAIN, "KeyError: 'tokens'"), rank=1),
    one("pyxis", "container", "pyxis: importing docker image: nvcr.io#nvidia/nemo:25.11", "slurmstepd: error: pyxis: child 10742 failed with error code: 1",
        "slurmstepd: error: pyxis: failed to import docker image", "slurmstepd: error: pyxis: printing enroot log file:",
        "slurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/proxy_auth returned error code: 401 Unauthorized",
        "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1", "srun: error: node-002: task 2: Exited with exit code 1",
        node="node-002", code=1),
    one("uv-missing", "container", "bash: line 1: uv: command not found", "srun: error: node-000: task 0: Exited with exit code 127", code=127),
    one("docker-driver", "container", 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'),
    one("not-torchrun", "launch_misuse", "ERROR: This script must be launched with torchrun.", "srun: error: node-000: tasks 0-7: Exited with exit code 1", code=1),
    one("slurm-account", "launch_misuse", "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified"),
    one("slurm-node-config", "launch_misuse", "srun: error: Unable to create step for job 7741: Requested node configuration is not available"),
    one("rank-variable", "launch_misuse", "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"),
    one("duplicate-gpu", "launch_misuse", "node-000:771:771 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 9 and rank 1 both on CUDA device 1b000",
        "[rank9]: torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:317, invalid usage (run with NCCL_DEBUG=WARN for details)"),
    one("python-one-rank", "python_error", head(), steps(), traceback("[rank7]: ", PRETRAIN, "TypeError: 'NoneType' object is not subscriptable"), closing(),
        remote_error(0), banner(7, "node-000", 1), rank=7, node="node-000", code=1),
    one("node-of-the-only-failing-task", "python_error", head(), steps(), closing(), traceback("[rank12]: ", PRETRAIN, "ValueError: x"),
        "srun: error: node-001: task 1: Exited with exit code 1", "srun: error: node-000: task 0: Terminated", rank=12, node="node-001", code=1),
    one("python-behind-watchdogs", "python_error", head(), steps(), watchdog(0, 8), watchdog(1, 8), watchdog(2, 8),
        traceback("[rank13]: ", PRETRAIN, "ValueError: token id 152064 out of range"), rank=13),
    one("python-torchrun-tee", "python_error", "[default0]:" + head()[0], "[default3]:Traceback (most recent call last):",
        '[default3]:  File "/opt/train.py", line 10, in main', "[default3]:RuntimeError: expected scalar type BFloat16 but found Float",
        banner(3, "node-000", 1), rank=3, code=1),
    one("gated", "python_error", "[rank0]: huggingface_hub.errors.GatedRepoError: 401 Client Error. Access to model meta-llama/Llama-3 is restricted.", rank=0),
    one("packed-files-not-shared", "dataloader", steps(0, 0), traceback("[rank8]: ", PRETRAIN, "TypeError: 'NoneType' object is not an iterator"), rank=8,
        accept=("python_error",)),
    one("loader-worker", "dataloader", head(), steps(), traceback("[rank3]: ", [("/usr/lib/python3/torch/utils/data/dataloader.py", 1284, "_get_data")],
        "RuntimeError: DataLoader worker (pid(s) 2637) exited unexpectedly"), rank=3),
    one("loader-caught", "dataloader", steps(), "[rank3]: IndexError: Caught IndexError in DataLoader worker process 0.", rank=3),
    one("mmap", "dataloader", traceback("[rank2]: ", [("/opt/megatron-lm/megatron/core/datasets/indexed_dataset.py", 331, "__init__")],
        "ValueError: mmap length is greater than file size"), rank=2),
    one("nan-assert", "nan", head(), steps(), "[rank4]: AssertionError: Rank 4: found NaN in local grad norm in backward pass before data-parallel communication "
        "collective. Device: 4, node: node-000", closing(), watchdog(0, 1201, numel=1), rank=4),
    one("nan-rerun-off", "nan", steps(), "[rank5]: RuntimeError: Rank 5, node node-001, device 5, iteration 41: Unexpected result nan (message='found NaN in local "
        "forward loss calculation')", rank=5, node="node-001"),
    one("rerun-transient-17", "rerun_exit", steps(), "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 6 at iteration #9 invocation #1 "
        "(message='loss is NaN')", "ERROR:megatron.core.rerun_state_machine:Rank 6, node node-000, device 6, iteration #9: Possible transient error!",
        "WARNING:megatron.core.rerun_state_machine:Exiting now. The job can be resumed from a previous checkpoint",
        "srun: error: node-000: task 6: Exited with exit code 17", rank=6, node="node-000", code=17, accept=("nan",)),
]  # fmt: skip

WAITING = [
    one("rank0-unique-id", "nccl_rank0_busy", head(), "Exporting to Hugging Face: save_artifacts", unique_id(8), unique_id(9),
        "This may indicate a possible application crash on rank 0 or a network set up issue.", rank=0, unsure=True),
    one("rank0-dataset-index", "nccl_rank0_busy", head()[:6], "> building train, validation, and test datasets ...",
        " > building shuffle index with split [0, 1254431) and [1254431, 1254431) ...", watchdog(3, 4, "ALLREDUCE", 1), watchdog(5, 4, "ALLREDUCE", 1),
        unsure=True, rank=0),
    one("rank0-import-error", "import_conflict", head(), traceback("[rank0]: ", [("/opt/bridge/hf_pretrained/base.py", 210, "save_artifacts")],
        "ImportError: This modeling file requires the following packages that were not found in your environment: fla"), unique_id(8), unique_id(9), rank=0),
    one("missing-one-of-eight", "nccl_missing_rank", head(8, 1), steps(), [watchdog(r, 88)[0] for r in range(8) if r != 5], rank=5, unsure=True),
    one("missing-desync-report", "nccl_missing_rank", head(8, 1), steps(), watchdog(0, 88), "\t - To our best knowledge, the lagging/dead/mismatched ranks that "
        "caused the desync are:", "\t - [0, 1, 2, 4, 5, 6, 7] joined but didn't finish collective #88 (count from 1)",
        "\t - [3] finished collective #87, but didn't join collective #88 (count from 1)", rank=3),
    one("missing-monitored-barrier", "nccl_missing_rank", "[rank0]: RuntimeError: [Rank 0]: Rank 6 failed to pass monitoredBarrier in 1800000 ms", rank=6),
    one("behind-by-one", "nccl_missing_rank", head(8, 1), steps(), [watchdog(r, 1201)[0] for r in (0, 1, 2, 3, 4, 6, 7)], watchdog(5, 1200), rank=5, unsure=True),
    one("pipeline-stage", "nccl_pipeline_stage", head(32, 2, 4), steps(), watchdog(8, 118, "RECV"), watchdog(16, 118, "RECV"), watchdog(24, 230, "SEND"), unsure=True),
    one("pipeline-coalesced", "nccl_pipeline_stage", head(32, 2, 4), steps(), watchdog(8, 118, "COALESCED", group="PIPELINE_MODEL_PARALLEL_GROUP"), unsure=True),
    one("all-in-step", "nccl_all_ranks_network", head(8, 1), steps(), [watchdog(r, 4242, form="old")[0] for r in range(8)], unsure=True),
    one("one-timeout-says-nothing", "undetermined", head(64), steps(), watchdog(11, 4242), unsure=True, accept=("nccl_all_ranks_network", "nccl_missing_rank")),
    one("heartbeat", "hang_process", head(), steps(), "[rank1]:[E304 09:22:11.1 ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be "
        "terminated after dumping debug info. workMetaList_.size()=103", unsure=True, accept=("undetermined",)),
    one("nvrx-section", "hang_process", head(), steps(), "2026-03-04 09:22:11 [WARNING] [RankMonitorServer:5] Section 'step' has been open for 181.20 seconds. Timeout "
        "is 180.00 seconds.", "2026-03-04 09:22:11 [WARNING] [RankMonitorServer:5] FT timeout elapsed.", unsure=True),
    one("nothing", "undetermined", head(), steps(), unsure=True),
    one("banner-without-reason", "undetermined", head(), steps(), banner(3, "node-000", 1, others=(1, 2)), unsure=True, code=1, rank=3),
    one("restarted-and-well-then-oom", "cuda_oom", head(), steps(100), traceback("[rank1]: ", PRETRAIN, "ValueError: something old"), closing(),
        "[ft_launcher] worker group failed, restarting (attempt 1)", head(), steps(103, 30), oom(6), rank=6, never=("python_error",)),
    Case("several-nodes-by-time", "python_error", {
        "node-000.log": log(head(), steps(), watchdog(0, 55, form="guid", at="09:22")),
        "node-001.log": log("[2026-03-04 09:11:20] INFO step", traceback("[rank9]: ", PRETRAIN, "ValueError: bad sample"),
                            "W0304 09:11:31.000000 2201 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 3308 closing signal SIGTERM"),
        "node-002.log": log("[2026-03-04 09:21:20] INFO step", traceback("[rank17]: ", PRETRAIN, "RuntimeError: aborted while waiting")),
    }, rank=9, node="node-001"),
]  # fmt: skip

CASES: list[Case] = [*MEMORY, *STORAGE, *NETWORK, *HARDWARE, *SCHEDULER, *SOFTWARE, *WAITING]
