"""The log of an NCCL run of four ranks on two hosts, as NCCL_DEBUG=INFO writes it."""


def init(rank: int, comm: int, place: int, size: int, identity: str) -> str:
    return (
        f"ncclCommInitRankConfig comm 0x{comm:x} rank {place} nranks {size} cudaDev {rank} "
        f"nvmlDev {rank} busId 1000 commId 0x{identity} - Init COMPLETE"
    )


def done(name: str, op: int, count: int, kind: int, comm: int, *, root: int = 0) -> str:
    return (
        f"{name}: opCount {op:x} sendbuff 0x7f sendsize 1 recvbuff 0x7e count {count} "
        f"datatype {kind} op 0 root {root} comm 0x{comm:x} [nranks=4] stream 0x55"
    )


def log_of(rank: int) -> list[str]:
    world, pair = 0xA0 + rank, 0xB0 + rank
    lines = [
        init(rank, world, rank, 4, "11"),
        init(rank, pair, rank // 2, 2, "2" + str(rank % 2)),  # {0, 2} and {1, 3}
        done("AllReduce", 0, 100, 9, world),
        done("AllGather", 1, 10, 7, world),
        done("ReduceScatter", 0, 8, 6, pair),
        done("Broadcast", 2, 3, 5, world, root=2),
    ]
    for other in range(4):
        lines.append(done("Send", 3, 5 + other, 7, world, root=other))
        lines.append(done("Recv", 3, 5 + rank, 7, world, root=other))
    if rank in (0, 1):
        lines.append(done("Send" if rank == 0 else "Recv", 4, 6, 7, world, root=1 - rank))
    return [
        f"(worker pid=9) node{rank // 2}:{100 + rank}:7 [{rank % 2}] NCCL INFO {x}" for x in lines
    ]
