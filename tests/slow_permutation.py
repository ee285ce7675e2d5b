"""The conditional permutation exactly as defined: one row at a time, in plain Python."""


def slow_argsort_top(theta: list[float], top: int) -> list[int]:
    order = list(range(len(theta)))
    for i in range(top):
        rest = order[i:]
        largest = max(theta[c] for c in rest)
        leader = min(c for c in rest if theta[c] == largest)
        j = order.index(leader)
        order[i], order[j] = order[j], order[i]
    return order


def slow_rank(x: int, theta: list[float], top: int) -> int:
    return slow_argsort_top(theta, top).index(x)


def slow_unrank(z: int, theta: list[float], top: int) -> int:
    return slow_argsort_top(theta, top)[z]
