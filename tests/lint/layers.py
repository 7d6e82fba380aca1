"""Who may use whom: shared/DESIGN.md, section 3, as a table. Checked on every include and on every CMake link line."""

import re

# A folder (longest match wins) -> the folders whose headers it may include besides its own.
CORE = "worker/core/"
MAY_USE = {
    "spec": [],
    "proto": ["spec"],
    "server/store": ["proto", "spec"],
    "server/jobs": ["server/store", "proto", "spec"],
    "server/fleet": ["server/store", "server/jobs", "proto", "spec"],
    "server/scheduler": ["proto", "spec"],
    "server/control": ["server/store", "server/jobs", "server/fleet", "server/scheduler", "proto", "spec"],
    "server/api": ["server/control", "server/jobs", "server/fleet", "server/scheduler", "server/store", "proto", "spec"],
    "server/app": ["server", "proto", "spec"],
    "client/lib": ["proto", "spec"],
    "client/cli": ["client/lib", "proto", "spec"],
    "worker/protocol": ["spec"],
    "worker/agent": ["worker/protocol", "proto", "spec"],
    CORE + "base": ["spec"],
    CORE + "quant": [CORE + "base", "spec"],
    CORE + "kernels/api": [CORE + "base", CORE + "quant", "spec"],
    CORE + "kernels/cpu": [CORE + "base", CORE + "quant", CORE + "kernels/api", "spec"],
    CORE + "kernels/cuda": [CORE + "base", CORE + "quant", CORE + "kernels/api", "spec"],
    CORE + "layers": [CORE + "base", CORE + "quant", CORE + "kernels/api", "spec"],
    CORE + "model": [CORE + "base", CORE + "quant", CORE + "kernels/api", CORE + "layers", "spec"],
    CORE + "optim": [CORE + "base", CORE + "quant", CORE + "kernels/api", "spec"],
    CORE + "distributed": [CORE + "base", "spec"],
    CORE + "data": [CORE + "base", "spec"],
    CORE + "checkpoint": [CORE + "base", CORE + "quant", CORE + "optim", CORE + "data", "spec"],
    CORE + "train": [CORE.rstrip("/"), "spec"],
    "worker/trainer": [CORE.rstrip("/"), "worker/protocol", "spec"],
    "tests": ["spec", "proto", "server", "client", "worker"],
}

# The one place that chooses between the CPU and the CUDA kernels sees both.
FILE_MAY_USE = {}

LIBTORCH = re.compile(r"^(ATen|torch|c10)/")
PROTOBUF = re.compile(r"^(grpc|grpcpp|google)/|^proto/")
TORCH_ALLOWED = ["worker/core", "worker/trainer", "tests/unit/worker/core", "tests/unit/worker/trainer",
                 "tests/support/oracle", "tests/bench", "tests/integration"]
PROTO_FORBIDDEN = ["spec", "worker/protocol", "worker/core", "worker/trainer"]
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
ROOTS = ("spec", "proto", "server", "client", "worker", "tests")


def below(path, folder):
    return path == folder or path.startswith(folder + "/")


def owner(path):
    """The table's folder that `path` lies in, or None."""
    folders = [folder for folder in MAY_USE if below(path, folder)]
    return max(folders, key=len) if folders else None


def allowed(user, used):
    """May a file below `user` include a file below `used`?"""
    folder = owner(user)
    if folder is None:
        return True
    choices = [folder, *MAY_USE[folder], *FILE_MAY_USE.get(user, [])]
    return any(below(used, choice) for choice in choices)


def check_includes(tree):
    for path in tree.files(".h", ".cc", ".cu", ".cuh"):
        if owner(path) is None:
            continue
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if match:
                yield from check_include(tree, path, number, match[1], match[2])


def check_include(tree, path, number, bracket, included):
    where = f"{path}:{number}"
    if LIBTORCH.match(included) and not any(below(path, folder) for folder in TORCH_ALLOWED):
        yield where, f"{included}: libtorch is only for worker/core and worker/trainer", "move this to worker/core"
    if PROTOBUF.match(included) and any(below(path, folder) for folder in PROTO_FORBIDDEN):
        yield (where, f"{included}: {owner(path)} never sees protobuf or gRPC",
               "speak through spec/job_spec.h or worker/protocol instead")
    if bracket == "<":
        return
    if included.split("/")[0] not in ROOTS:
        yield where, f'"{included}" is not written from the repository root', "write the whole path from the root"
        return
    generated = included.endswith((".pb.h",)) and included.startswith("proto/coat/")
    if not generated and not tree.exists(included):
        yield where, f'"{included}" does not exist', "include a file that is there"
    if not allowed(path, included):
        yield (where, f"{owner(path)} may not use {included}",
               f"it may use: {', '.join(MAY_USE[owner(path)]) or 'only itself'} (tests/lint/layers.py, shared design)")


LINK_LINE = re.compile(r"\b(coat_library|coat_program|coat_test|target_link_libraries)\s*\(([^()]*)\)")
NOT_A_FOLDER = {"coat_warnings", "coat_libtorch", "coat_proto", "coat_library", "coat_program", "coat_test"}


def check_links(tree):
    folders = {path.rsplit("/", 1)[0] for path in tree.files("CMakeLists.txt") if "/" in path}
    by_target = {"coat_" + folder.replace("/", "_"): folder for folder in folders}
    for path in tree.files("CMakeLists.txt"):
        folder = path.rsplit("/", 1)[0] if "/" in path else ""
        if owner(folder) is None:
            continue
        text = "\n".join(line.split("#")[0] for line in tree.lines(path))
        for call in LINK_LINE.finditer(text):
            number = text[: call.start()].count("\n") + 1
            for target in re.findall(r"\bcoat_\w+", call[2]):
                used = by_target.get(target)
                if target == "coat_libtorch" and not any(below(folder, one) for one in TORCH_ALLOWED):
                    yield f"{path}:{number}", f"{folder} links libtorch", "only worker/core and worker/trainer may"
                if target == "coat_proto" and any(below(folder, one) for one in PROTO_FORBIDDEN):
                    yield f"{path}:{number}", f"{folder} links protobuf", "it never sees protobuf or gRPC"
                if used and not below(used, folder) and not allowed(folder, used):
                    yield (f"{path}:{number}", f"{folder} may not link {target}",
                           f"it may use: {', '.join(MAY_USE[owner(folder)]) or 'only itself'}")
