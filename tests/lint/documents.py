"""Every link and every path that a document or a comment names exists."""

import re

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
COMMENT_PATH = re.compile(r"(?<![\w/.<])((?:spec|proto|server|worker|client|deploy|tests|cmake)/[\w/.-]*\w\.(?:h|cc|cu|proto|py|yaml|md|txt))\b")
# Folders that a build or a run makes.
MADE = ("build/",)


def check_documents(tree):
    tops = {path.split("/")[0] for path in tree.files() if "/" in path}
    for path in tree.files(".md"):
        folder = path.rsplit("/", 1)[0] + "/" if "/" in path else ""
        fenced = False
        for number, line in enumerate(tree.lines(path), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            where = f"{path}:{number}"
            for target in [] if fenced else LINK.findall(line):
                plain = target.split("#")[0]
                if plain and "://" not in target and not target.startswith("mailto:") and not tree.exists(folder + plain):
                    yield where, f"the link '{target}' leads nowhere", "correct the path, relative to the document"
            for span in CODE_SPAN.findall(line):
                word = span.split()[0] if span.split() else ""
                yield from named_path(tree, where, word, tops)


def named_path(tree, where, word, tops):
    word = word.rstrip(".,;:").removeprefix("./")
    if "/" not in word or word.split("/")[0] not in tops or word.startswith(MADE):
        return
    if re.search(r"[<>{}$()=\"']", word):
        return
    if not tree.exists(word.split(":")[0]):
        yield where, f"'{word}' does not exist", "correct the path, from the repository root"


def check_comments(tree):
    for path in tree.files(".h", ".cc", ".proto", "CMakeLists.txt", ".cmake", ".yaml"):
        mark = "//" if path.endswith((".h", ".cc", ".proto")) else "#"
        for number, line in enumerate(tree.lines(path), 1):
            if not line.lstrip().startswith(mark):
                continue
            for named in COMMENT_PATH.findall(line):
                if not named.endswith(".pb.h") and not tree.exists(named):
                    yield f"{path}:{number}", f"the comment names '{named}', which does not exist", "correct the path"
