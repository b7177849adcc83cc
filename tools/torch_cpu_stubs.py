"""Let PyPI's CUDA build of torch start without NVIDIA's 3 GB of wheels: one empty library per missing one."""
import pathlib, re, subprocess, sys, sysconfig
LIBS = {"cublasLt": "libcublasLt.so.13", "cublas": "libcublas.so.13", "cusparseLt": "libcusparseLt.so.0", "cusparse": "libcusparse.so.12",
        "cudnn": "libcudnn.so.9", "cufft": "libcufft.so.12", "cusolver": "libcusolver.so.12", "nvrtc": "libnvrtc.so.13",
        "cuFile": "libcufile.so.0", "nvshmem": "libnvshmem_host.so.3", "nccl": "libnccl.so.2", "cupti": "libcupti.so.13"}
site = pathlib.Path(sysconfig.get_paths()["purelib"])
out = site / "nvidia/cu13/lib"          # torch's DT_RPATH already looks here; nvidia-cuda-runtime puts the real libcudart here
syms = {so: {} for so in LIBS.values()}
for lib in (site / "torch/lib").glob("*.so*"):
    for line in subprocess.run(["readelf", "--dyn-syms", "-W", lib], capture_output=True, text=True).stdout.splitlines():
        f = line.split()
        if len(f) < 8 or f[6] != "UND":
            continue
        name, _, version = f[7].partition("@")
        prefix = next((p for p in LIBS if name.startswith(p)), None)
        if prefix:
            syms[LIBS[prefix]][name] = (version.lstrip("@"), f[3])
for so, table in syms.items():
    body = "".join(f"char {n}[64];\n" if kind == "OBJECT" else f"long {n}(void) {{ return 1; }}\n" for n, (_, kind) in table.items())
    cmd = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", out / so, f"-Wl,-soname,{so}"]
    versions = {v for v, _ in table.values() if v}
    if versions:
        script = "".join(f"{v} {{ global: {'; '.join(n for n in table if table[n][0] == v)}; }};\n" for v in versions)
        (out / "v.map").write_text(script); cmd.append(f"-Wl,--version-script={out / 'v.map'}")
    subprocess.run(cmd, input=body, text=True, check=True)
