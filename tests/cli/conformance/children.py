"""Everything that a script can start: processes of every start method, pools, threads, programs."""

import concurrent.futures
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

LEVEL = "imported"


def describe(queue=None):
    """Run in a child; a function of __main__, so that the child must find that module again."""
    main = sys.modules["__main__"]
    parent = multiprocessing.parent_process()
    described = {
        "name": __name__,
        "function": describe.__module__,
        "main": getattr(main, "__file__", None),
        "level": LEVEL,
        "argv": sys.argv,
        "path": sys.path,
        "process": multiprocessing.current_process().name,
        "parent": parent is not None and parent.pid == os.getppid(),
        "rank": os.environ.get("RANK"),
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGTERM, signal.SIGINT)],
        "threads": threading.active_count(),
        "modules": sorted(n for n in sys.modules if "hpclaunch" in n or "sitecustomize" in n),
    }
    if queue is not None:
        queue.put(described)
    return described


def main():
    facts = {}
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=describe, args=(queue,))
        child.start()
        facts[method] = queue.get()
        child.join()
        facts[f"{method}.code"] = child.exitcode
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        facts["pool"] = pool.submit(describe).result()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        facts["thread"] = pool.submit(describe).result()
    pid = os.fork()
    if not pid:
        os._exit(7)
    facts["fork and wait"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.path, sys.argv, __name__)"],
        capture_output=True,
        text=True,
    )
    facts["program"] = (said.returncode, said.stdout, said.stderr)
    facts["own.pid"] = os.getpid()
    path = os.path.join(os.environ["CONFORMANCE_OUT"], os.environ["RANK"] + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(facts, f, indent=0, sort_keys=True)


if __name__ == "__main__":
    LEVEL = "main"
    main()
