# ruff: noqa
# As it ran when the rows of h100x2.jsonl were measured, but for its layout and this remark.
"""Two GPUs of one host: what stock TileLang kernels reach over peer memory, and what a product and a
reduce-scatter gain by fusing. usage: first_trial.py OUT
"""

import json, os, sys, time, traceback
import torch, torch.distributed as dist, torch.multiprocessing as mp

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
bf = "bfloat16"


def copier(R, C, nb, how, rows=64):
    import tilelang.language as T

    per = R // rows // nb

    @T.prim_func
    def lsu(A: T.Tensor((R, C), bf), B: T.Tensor((R, C), bf)):
        with T.Kernel(nb, threads=256) as b:
            f = T.alloc_fragment((rows, 128), bf)
            for i in T.serial(per):
                for j in T.serial(C // 128):
                    T.copy(A[(i * nb + b) * rows, j * 128], f)
                    T.copy(f, B[(i * nb + b) * rows, j * 128])

    @T.prim_func
    def tma(A: T.Tensor((R, C), bf), B: T.Tensor((R, C), bf)):
        with T.Kernel(nb, threads=128) as b:
            s = T.alloc_shared((rows, 128), bf)
            for i in T.serial(per):
                for j in T.serial(C // 128):
                    T.copy(A[(i * nb + b) * rows, j * 128], s)
                    T.copy(s, B[(i * nb + b) * rows, j * 128])

    @T.prim_func
    def add(A: T.Tensor((R, C), bf), B: T.Tensor((R, C), bf)):
        with T.Kernel(nb, threads=128) as b:
            s = T.alloc_shared((rows, 128), bf)
            for i in T.serial(per):
                for j in T.serial(C // 128):
                    T.copy(A[(i * nb + b) * rows, j * 128], s)
                    T.atomic_add(B[(i * nb + b) * rows, j * 128], s, use_tma=True)

    return dict(lsu=lsu, tma=tma, add=add)[how]


def gemm(M, N, K, rank, fused, bm=128, bn=256, bk=64, stages=3, threads=256):
    import tilelang.language as T

    half = M // 2

    @T.prim_func
    def rs(
        A: T.Tensor((M, K), bf),
        B: T.Tensor((K, N), bf),
        C0: T.Tensor((half, N), bf),
        C1: T.Tensor((half, N), bf),
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by0):
            As = T.alloc_shared((bm, bk), bf)
            Bs = T.alloc_shared((bk, bn), bf)
            Cs = T.alloc_shared((bm, bn), bf)
            acc = T.alloc_fragment((bm, bn), "float32")
            T.use_swizzle(8)
            by = (by0 + (rank + 1) * (half // bm)) % (M // bm)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
                T.copy(A[by * bm, k * bk], As)
                T.copy(B[k * bk, bx * bn], Bs)
                T.gemm(As, Bs, acc)
            T.copy(acc, Cs)
            if by < half // bm:
                T.atomic_add(C0[by * bm, bx * bn], Cs, use_tma=True)
            else:
                T.atomic_add(C1[by * bm - half, bx * bn], Cs, use_tma=True)

    @T.prim_func
    def plain(A: T.Tensor((M, K), bf), B: T.Tensor((K, N), bf), C: T.Tensor((M, N), bf)):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            As = T.alloc_shared((bm, bk), bf)
            Bs = T.alloc_shared((bk, bn), bf)
            Cs = T.alloc_shared((bm, bn), bf)
            acc = T.alloc_fragment((bm, bn), "float32")
            T.use_swizzle(8)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
                T.copy(A[by * bm, k * bk], As)
                T.copy(B[k * bk, bx * bn], Bs)
                T.gemm(As, Bs, acc)
            T.copy(acc, Cs)
            T.copy(Cs, C[by * bm, bx * bn])

    return rs if fused else plain


def rank_main(rank, out):
    import tilelang, torch.distributed._symmetric_memory as sm

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(rank)
    dev = torch.device("cuda", rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=dev)
    log = open(out, "a") if rank == 0 else None

    def say(**k):
        if rank == 0:
            print(json.dumps(k), flush=True)
            log.write(json.dumps(k) + "\n")
            log.flush()

    def bench(f, n=20, pre=None, both=True):
        ts = []
        for i in range(n + 3):
            if pre:
                pre()
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            if both or rank == 0:
                f()
            b.record()
            torch.cuda.synchronize()
            t = torch.tensor([a.elapsed_time(b)], device=dev)
            dist.all_reduce(t, op=dist.ReduceOp.MAX)
            if i >= 3:
                ts.append(t.item())
        return sorted(ts)[n // 2] * 1e3

    def part(name, f):
        try:
            f()
        except Exception as e:
            say(part=name, error=f"{type(e).__name__}: {str(e)[-400:]}")
            traceback.print_exc() if rank == 0 else None

    jit = lambda p: tilelang.compile(p, target="cuda")
    say(gpu=torch.cuda.get_device_name(), peer=torch.cuda.can_device_access_peer(rank, 1 - rank))

    def nccl():
        for mb in (0.0625, 0.25, 1, 4, 16, 64, 256):
            n = int(mb * 2**20 // 2)
            x = torch.zeros(n, dtype=torch.bfloat16, device=dev)
            y = torch.empty(n // 2, dtype=torch.bfloat16, device=dev)
            z = torch.empty(2 * n, dtype=torch.bfloat16, device=dev)
            say(
                nccl_mb=mb,
                all_reduce_us=bench(lambda: dist.all_reduce(x)),
                reduce_scatter_us=bench(lambda: dist.reduce_scatter_tensor(y, x)),
                all_gather_us=bench(lambda: dist.all_gather_into_tensor(z, x)),
            )

    part("nccl", nccl)
    R, C = 8448, 4096
    state = {}

    def symm():
        buf = sm.empty((R, C), dtype=torch.bfloat16, device=dev)
        h = sm.rendezvous(buf, dist.group.WORLD)
        state.update(buf=buf, h=h, peer=h.get_buffer(1 - rank, (R, C), torch.bfloat16))
        buf.zero_()
        say(symm_peer_device=str(state["peer"].device))
        loc = torch.randn(R, C, device=dev).bfloat16()
        state["loc"] = loc
        say(copy_engine_push_gbs=R * C * 2 / bench(lambda: state["peer"].copy_(loc)) / 1e3)
        dist.barrier()
        torch.cuda.synchronize()
        say(push_ok=bool(torch.isfinite(buf.float()).all()) and float(buf.abs().sum()) > 0)

    part("symm", symm)

    def mech():
        for how in ("lsu", "tma", "add"):
            for nb in (2, 4, 6, 12, 33, 66, 132):
                k = jit(copier(R, C, nb, how, 64))
                loc, peer = state["loc"], state["peer"]
                us = bench(lambda: k(loc, peer), 7)
                row = dict(mech=how, blocks=nb, push_gbs=R * C * 2 / us / 1e3)
                if how != "add":
                    row["pull_gbs"] = R * C * 2 / bench(lambda: k(peer, loc), 7) / 1e3
                row["local_gbs"] = R * C * 2 / bench(lambda: k(loc, state["buf"]), 7) / 1e3
                say(**row)

    part("mech", mech)

    def fused():
        for M, N, K in (
            (8192, 8192, 4096),
            (8192, 4096, 7168),
            (2048, 8192, 4096),
            (8192, 8192, 14336),
            (512, 8192, 4096),
        ):
            A = torch.randn(M, K, device=dev).bfloat16() * 0.05
            B = torch.randn(K, N, device=dev).bfloat16() * 0.05
            half = M // 2
            buf = sm.empty((half, N), dtype=torch.bfloat16, device=dev)
            h = sm.rendezvous(buf, dist.group.WORLD)
            peer = h.get_buffer(1 - rank, (half, N), torch.bfloat16)
            kf = jit(gemm(M, N, K, rank, True))
            kp = jit(gemm(M, N, K, rank, False))
            full = torch.empty(M, N, device=dev, dtype=torch.bfloat16)
            y = torch.empty(half, N, device=dev, dtype=torch.bfloat16)
            c0, c1 = (buf, peer) if rank == 0 else (peer, buf)
            buf.zero_()
            torch.cuda.synchronize()
            dist.barrier()
            kf(A, B, c0, c1)
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            ref = torch.empty(half, N, device=dev)
            dist.reduce_scatter_tensor(ref, A.float() @ B.float())
            err = float((buf.float() - ref).norm() / ref.norm())

            def seq():
                torch.matmul(A, B, out=full)
                dist.reduce_scatter_tensor(y, full)

            def seqt():
                kp(A, B, full)
                dist.reduce_scatter_tensor(y, full)

            z = lambda: buf.zero_()
            row = dict(
                shape=(M, N, K),
                rel_err=err,
                cublas_us=bench(lambda: torch.matmul(A, B, out=full)),
                ours_gemm_us=bench(lambda: kp(A, B, full)),
                reduce_scatter_us=bench(lambda: dist.reduce_scatter_tensor(y, full)),
                sequential_us=bench(seq),
                sequential_ours_us=bench(seqt),
                fused_us=bench(lambda: kf(A, B, c0, c1), pre=z),
            )
            try:
                gname = dist.group.WORLD.group_name
                row["torch_fused_us"] = bench(
                    lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(A, B, "sum", 0, gname)
                )
            except Exception as e:
                row["torch_fused_error"] = str(e)[-200:]
            say(**row)

    part("fused", fused)

    def gather():
        for M, N, K in ((8192, 8192, 8192), (8192, 14336, 4096), (2048, 8192, 8192)):
            gname = dist.group.WORLD.group_name
            A = torch.randn(M // 2, K, device=dev).bfloat16()
            B = torch.randn(K, N // 2, device=dev).bfloat16()
            full = torch.empty(M, K, device=dev, dtype=torch.bfloat16)

            def seq():
                dist.all_gather_into_tensor(full, A)
                torch.matmul(full, B)

            row = dict(
                ag_shape=(M, N, K),
                sequential_us=bench(seq),
                gemm_us=bench(lambda: torch.matmul(full, B)),
                all_gather_us=bench(lambda: dist.all_gather_into_tensor(full, A)),
            )
            try:
                row["torch_fused_us"] = bench(
                    lambda: torch.ops.symm_mem.fused_all_gather_matmul(A, [B], 0, gname)
                )
            except Exception as e:
                row["torch_fused_error"] = str(e)[-200:]
            say(**row)

    part("gather", gather)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, args=(sys.argv[1],), nprocs=2)
