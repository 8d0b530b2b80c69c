"""Environment and launch: variables that matter, Slurm scripts, launchers."""

from __future__ import annotations

from advisor.rules.lint.experts import ep_overlap
from advisor.rules.lint.form import ARG, OVERLAP, PERF, RESILIENCY, SKILLS, SLURM, Hit, rule
from advisor.rules.lint.frame import fsdp
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.transformer import graph

MEMORY = f"{SKILLS}-perf-memory-tuning"
SYNC = "ML:megatron/core/extensions (CUDA reads the variable when the context is made)"
NODE_LOCAL = ("/root", "/tmp", "/local")  # noqa: S108 (recognised, not used)


def _major(c: Setup) -> int | None:
    return None if c.capability is None else c.capability[0]


def _connections(c: Setup) -> bool:
    old = _major(c) is not None and (_major(c) or 0) < 10
    plain = not fsdp(c) and not c.on("dist.use_torch_fsdp2") and not ep_overlap(c)
    value = c.variable("CUDA_DEVICE_MAX_CONNECTIONS")
    wrong = c.unset("CUDA_DEVICE_MAX_CONNECTIONS") or (value is not None and value != "1" and "$" not in value)
    return old and plain and (c.tp > 1 or c.cp > 1) and wrong


def _domain(c: Setup) -> str | None:
    ranks = c.variable("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN")
    domain = c.nvlink_domain
    if domain is None:
        return None
    expected = min(c.ep, domain) if c.given("ep") else domain
    wrong = ranks is not None and ranks.isdigit() and int(ranks) != expected
    if wrong and (c.given("ep") or int(ranks or 0) > domain):
        return (
            f"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={ranks}, EP {c.ep} in domains of {domain} GPUs wants {expected}"
        )
    size, mnnvl = c.variable("NVLINK_DOMAIN_SIZE"), c.variable("USE_MNNVL")
    if size is not None and size.isdigit() and int(size) != domain:
        return f"NVLINK_DOMAIN_SIZE={size}, the domain has {domain} GPUs"
    if mnnvl in ("0", "1") and (mnnvl == "1") != (domain > 8):
        return f"USE_MNNVL={mnnvl} with NVLink domains of {domain} GPUs"
    return None


def _alloc(c: Setup) -> str:
    return c.variable("PYTORCH_CUDA_ALLOC_CONF") or c.variable("PYTORCH_ALLOC_CONF") or ""


def _expandable(c: Setup) -> bool:
    return "expandable_segments:true" in _alloc(c).lower()


def _both_spawn(c: Setup) -> Hit | None:
    tasks, launcher = c.number("slurm.ntasks-per-node"), c.fact("launcher")
    if launcher not in ("torchrun", "ft_launcher") or tasks is None or tasks <= 1:
        return None
    return Hit(
        f"{tasks} tasks per node each start {launcher}: every node gets {tasks} launchers and ports clash (EADDRINUSE)",
        "#SBATCH --ntasks-per-node=1 with a launcher, or start python directly with 8 tasks",
    )


def _one_task(c: Setup) -> bool:
    per_node = c.number("slurm.gpus-per-node")
    tasks = c.number("slurm.ntasks-per-node")
    return (
        c.fact("launcher") == "srun" and c.fact("training") is not None and (per_node or 0) > 1
        and (tasks or 1) == 1 and c.number("slurm.ntasks") in (None, 1)
    )  # fmt: skip


def _ranks(c: Setup) -> Hit | None:
    nproc, per_node = c.number("launch.nproc_per_node"), c.number("slurm.gpus-per-node")
    if nproc is not None and per_node is not None and nproc != per_node and c.fact("launcher") != "srun":
        return Hit(f"{nproc} processes per node on {per_node} GPUs per node", f"--nproc_per_node={per_node}")
    nnodes, nodes = c.number("launch.nnodes"), c.number("slurm.nodes")
    if nnodes is not None and nodes is not None and nnodes != nodes:
        return Hit(f"the launcher waits for {nnodes} nodes, Slurm gives {nodes}", "--nnodes=$SLURM_JOB_NUM_NODES")
    tasks = c.number("slurm.ntasks-per-node")
    if c.fact("launcher") == "srun" and tasks is not None and per_node is not None and 1 < tasks != per_node:
        return Hit(f"{tasks} tasks per node on {per_node} GPUs per node", f"--ntasks-per-node={per_node}")
    return None


def _world(c: Setup) -> Hit | None:
    found = c.number("launch.world")
    if c.gpus and found and found != c.gpus and c.fact("gpus_asked"):
        return Hit(f"the launch script starts {found} ranks, --gpus says {c.gpus}", "make them agree")
    return None


def _node_rank(c: Setup) -> bool:
    nodes = c.number("launch.nnodes") or c.number("slurm.nodes") or 1
    return (
        c.fact("launcher") == "torchrun" and nodes > 1 and c.fact("node_rank") is None and c.fact("rendezvous") is None
        and c.fact("under_srun") is not None
    )  # fmt: skip


ENVIRONMENT = (
    rule("max-connections-on-hopper", "stop", "environment", "megatron-lm", ARG, _connections,
         "TP {tp} / CP {cp} before Blackwell need CUDA_DEVICE_MAX_CONNECTIONS=1, it is "
         "{env.CUDA_DEVICE_MAX_CONNECTIONS}",
         "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
    rule("max-connections-wanted", "slow", "environment", "bridge", f"{PERF}; {OVERLAP}",
         lambda c: _major(c) == 9 and (c.tp > 1 or c.cp > 1) and not ep_overlap(c) and not fsdp(c)
         and c.variable("CUDA_DEVICE_MAX_CONNECTIONS") not in (None, "1"),
         "CUDA_DEVICE_MAX_CONNECTIONS={env.CUDA_DEVICE_MAX_CONNECTIONS}: H100 recipes with TP or CP > 1 use 1",
         "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
    rule("max-connections-on-blackwell", "info", "environment", "mcore", PERF,
         lambda c: (_major(c) or 0) >= 10 and c.variable("CUDA_DEVICE_MAX_CONNECTIONS") == "1",
         "CUDA_DEVICE_MAX_CONNECTIONS=1 on Blackwell: every vendor recipe uses 32",
         "export CUDA_DEVICE_MAX_CONNECTIONS=32"),
    rule("connections-set-too-late", "silent", "environment", "env", SYNC,
         lambda c: c.fact("late_variable") is not None,
         "{fact.late_variable} is set in Python after CUDA or the process group was initialised: no effect",
         "export it in the launch script"),
    rule("connections-set-in-python", "info", "environment", "env", SYNC,
         lambda c: c.fact("python_variable") is not None and c.fact("late_variable") is None,
         "{fact.python_variable} is set in Python: it works only before anything touches CUDA",
         "export it in the script"),
    rule("expandable-segments-need-graph-register", "stop", "environment", "mcore", f"{ARG}; {PERF} (cg-05)",
         lambda c: _expandable(c) and graph(c) not in ("none", "local") and (
             c.unset("NCCL_GRAPH_REGISTER") or c.variable("NCCL_GRAPH_REGISTER") not in (None, "0")),
         "CUDA graphs with expandable_segments need NCCL_GRAPH_REGISTER=0, it is {env.NCCL_GRAPH_REGISTER}",
         "export NCCL_GRAPH_REGISTER=0"),
    rule("no-expandable-segments", "info", "environment", "mcore", f"{MEMORY} (mem-01)",
         lambda c: c.env_known and c.fact("training") is not None and not _alloc(c) and not c.on("ddp.nccl_ub"),
         "expandable_segments is not set: fragmentation may look like lack of memory",
         "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    rule("hybridep-domain", "silent", "environment", "mcore", f"{PERF} (ep-06)", _domain,
         "HybridEP variables do not match the NVLink domain", "set them from the topology"),
    rule("nvls-with-restart", "stop", "environment", "bridge megatron-lm", RESILIENCY,
         lambda c: c.on("inprocess_restart.enabled") and c.variable("NCCL_NVLS_ENABLE") not in (None, "0"),
         "in-process restart with NCCL_NVLS_ENABLE={env.NCCL_NVLS_ENABLE}", "export NCCL_NVLS_ENABLE=0"),
    rule("restart-variables", "silent", "environment", "bridge megatron-lm", RESILIENCY,
         lambda c: c.on("inprocess_restart.enabled") and c.env_known and next(
             (f"in-process restart needs {name}={value}, the script does not set it" for name, value in (
                 ("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"), ("NCCL_NVLS_ENABLE", "0"),
                 ("TORCH_CPP_LOG_LEVEL", "error")) if c.unset(name)), None),
         "in-process restart needs its environment variables", "export TORCH_CPP_LOG_LEVEL=error "
         "TORCH_NCCL_RETHROW_CUDA_ERRORS=0 NCCL_NVLS_ENABLE=0"),
    rule("restart-rethrow", "silent", "environment", "bridge megatron-lm", RESILIENCY,
         lambda c: c.on("inprocess_restart.enabled") and c.variable("TORCH_NCCL_RETHROW_CUDA_ERRORS") not in (None,
         "0"),
         "in-process restart with TORCH_NCCL_RETHROW_CUDA_ERRORS={env.TORCH_NCCL_RETHROW_CUDA_ERRORS}",
         "export TORCH_NCCL_RETHROW_CUDA_ERRORS=0"),
)  # fmt: skip

SLURM_RULES = (
    rule("launcher-times-tasks", "stop", "launch", "slurm", f"{SLURM} (sl-01)", _both_spawn,
         "several tasks per node each start a launcher", "one task per node with a launcher"),
    rule("one-task-for-all-gpus", "stop", "launch", "slurm", SLURM, _one_task,
         "srun starts one task per node for {slurm.gpus-per-node} GPUs: the other GPUs idle and the world is too small",
         "#SBATCH --ntasks-per-node=8"),
    rule("ranks-match-gpus", "stop", "launch", "slurm", SLURM, _ranks, "ranks and GPUs do not match",
        "make them agree"),
    rule("ranks-match-request", "info", "launch", "slurm", SLURM, _world, "ranks and --gpus differ", "make them agree"),
    rule("torchrun-needs-node-rank", "stop", "launch", "slurm", SLURM, _node_rank,
         "torchrun on several nodes without --node_rank or --rdzv_endpoint: every node is node 0",
         "--node_rank=\\$SLURM_NODEID"),
    rule("torchrun-around-bridge", "info", "launch", "slurm", SLURM,
         lambda c: c.fact("launcher") == "torchrun" and c.fact("under_srun") is not None and c.framework == "bridge",
         "Bridge takes its ranks from Slurm: srun can start python directly", "#SBATCH --ntasks-per-node=8 with srun"),
    rule("srun-flag-as-directive", "silent", "launch", "slurm", f"{SLURM} (sl-04)",
         lambda c: next((f"#SBATCH --{name} is an srun flag: sbatch ignores or refuses it"
                         for name in ("no-container-mount-home",) if c.given(f"slurm.{name}")), None),
         "an srun flag as #SBATCH directive", "move it to the srun line"),
    rule("variable-expands-too-early", "silent", "launch", "slurm", f"{SLURM} (sl-03)",
         lambda c: c.fact("early_variable") is not None,
         "{fact.early_variable} in double quotes expands when the script starts, not on each task",
         "escape the dollar sign: \\$NAME"),
    rule("missing-gpus-directive", "silent", "launch", "slurm", SLURM,
         lambda c: c.fact("sbatch") is not None and c.fact("training") is not None and not any(
             c.given(f"slurm.{name}") for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task", "exclusive")),
         "no GPUs are asked for (--gpus-per-node)", "#SBATCH --gpus-per-node=8"),
    rule("secret-in-script", "info", "launch", "slurm", SLURM,
         lambda c: c.fact("secret") is not None,
         "{fact.secret} is written into the script", "pass it through the scheduler's environment"),
    rule("nemo-home-shared", "silent", "launch", "slurm", f"{SLURM} (7; pk-02)",
         lambda c: (c.number("slurm.nodes") or c.number("launch.nnodes") or 1) > 1 and (
             (c.variable("NEMO_HOME") or "").startswith(NODE_LOCAL)),
         "NEMO_HOME={env.NEMO_HOME} is local to a node: others do not see packed data",
         "NEMO_HOME on a shared file system"),
    rule("nemo-home-unset", "info", "launch", "slurm", f"{SLURM} (7; pk-02)",
         lambda c: (c.number("slurm.nodes") or 1) > 1 and c.fact("mode") in ("sft", "peft", "lora", "finetune")
         and c.unset("NEMO_HOME"),
         "fine-tuning on several nodes without NEMO_HOME on a shared file system",
         "export NEMO_HOME=SHARED/cache/nemo"),
    rule("uv-sync-on-every-rank", "info", "launch", "slurm", SLURM,
         lambda c: c.fact("uv_sync") is not None and (c.number("slurm.nodes") or 1) > 1,
         "uv sync on every rank: warm the cache with one process first", "two-phase srun"),
    rule("script-tests-world-size", "stop", "launch", "slurm", f"{SLURM} (sl-02)",
         lambda c: c.fact("tests_world_size") is not None,
         "the script tests WORLD_SIZE only, which srun does not set", "also accept SLURM_NTASKS"),
    rule("mlm-needs-pythonpath", "info", "launch", "slurm", SLURM,
         lambda c: c.framework == "megatron-lm" and c.fact("sbatch") is not None and c.unset("PYTHONPATH")
         and c.fact("pythonpath") is None,
         "pretrain_gpt.py needs Megatron-LM on PYTHONPATH", "PYTHONPATH=$WORKDIR/3rdparty/Megatron-LM"),
)  # fmt: skip

LAUNCH = (*ENVIRONMENT, *SLURM_RULES)
