import json
import subprocess
import sys
from pathlib import Path

from advisor.cost.tables import RateTable, SizeTable

SCRIPT = Path(__file__).resolve().parents[2] / "profiles" / "scripts" / "condense.py"
OPS = ("nccl_all_gather", "nccl_reduce_scatter", "nccl_all_reduce", "nccl_alltoall")


def raw_rows():
    yield "gpu,op,params,value,unit,source"
    names = ("H100-SXM-80GB", "A100-SXM4-80GB", "H200-SXM-141GB", "B200-SXM", "B300-SXM", "GB200", "GB300")
    for gpu in (*names, "L40S", "RTX-PRO-6000-Server"):
        for op in OPS:
            for ranks, (small, large) in {2: (5, 9), 8: (11, 17)}.items():
                yield f"{gpu},{op},dtype=half;gpus={ranks};nodes=1;bytes=1048576;nccl=2,{large},us,tables"
                yield f"{gpu},{op},dtype=half;gpus={ranks};nodes=1;bytes=512;nccl=2,{small},us,tables"
            yield f"{gpu},{op},dtype=half;gpus=16;nodes=2;bytes=512;nccl=2,99,us,elsewhere"
            yield f"{gpu},{op},dtype=int8;gpus=2;nodes=1;bytes=512;nccl=2,77,us,tables"
    for gpu in names:
        for heads, value in ((8, 300), (32, 400)):
            for seq in (1024, 4096):
                params = f"dtype=bf16;batch=1;seq={seq};heads={heads};kv_heads=1;head_dim=128;kernel=k"
                yield f"{gpu},attention_fwd_causal,{params},{value},TFLOP/s,tables"
        yield f"{gpu},attention_fwd_causal,dtype=bf16;batch=1;seq=1024;heads=8;kv_heads=1;head_dim=256;kernel=k,350,T,x"
        yield f"{gpu},attention_fwd_causal,dtype=fp8;batch=1;seq=1024;heads=8;kv_heads=1;head_dim=128;kernel=k,999,T,x"


def test_condensing_keeps_what_planning_needs(tmp_path):
    (tmp_path / "measured_points.csv").write_text("\n".join(raw_rows()) + "\n")
    out = tmp_path / "kernels"
    out.mkdir()
    subprocess.run([sys.executable, SCRIPT, tmp_path, "--out", out], check=True, timeout=60)
    h100 = json.loads((out / "h100-sxm-80gb.json").read_text())
    assert h100["collectives_us"]["all_to_all"]["8"] == {"bytes": [512, 1048576], "us": [11.0, 17.0]}
    assert list(h100["collectives_us"]["all_gather"]) == ["2", "8"]
    assert h100["attention_fwd_tflops"] == {
        "head_dims": [128, 256], "seq": [1024, 4096], "rate": [[400.0, 400.0], [350.0, 350.0]],
    }  # fmt: skip
    assert (h100["kind"], h100["sources"]) == ("measured", ["tables", "x"])
    h800 = json.loads((out / "h800-sxm-80gb.json").read_text())
    assert h800["kind"] == "assumed"
    assert h800["collectives_us"]["all_gather"]["2"]["us"] == [5.0, 5 + 4 * 450 / 200]
    assert "attention_fwd_tflops" not in json.loads((out / "l40s-48gb.json").read_text())
    SizeTable.of(h100["collectives_us"]["all_gather"], 1e-6)
    RateTable.of(h100["attention_fwd_tflops"], 1e12)
