"""Where the chains of a directed graph end."""

from collections.abc import Callable, Sequence


def find_sinks(edges: Callable[[int], Sequence[int]], nodes: Sequence[int]) -> list[list[int]]:
    """Return the strongly connected components from which no edge leads to another one.

    Tarjan's algorithm with an explicit stack: chains are as long as a job has ranks.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        work = [(root, iter(edges(root)))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(edges(target))))
                    break
                if target not in component:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    members = []
                    while True:
                        member = stack.pop()
                        component[member] = len(found)
                        members.append(member)
                        if member == node:
                            break
                    found.append(members)
    return [
        members
        for number, members in enumerate(found)
        if all(component[target] == number for node in members for target in edges(node))
    ]
