"""Publish the asv site so that it opens without any network, even by a double click.

    python suites/asv/publish.py [--html FOLDER] [--only-pack]

``asv publish`` writes pages that load their libraries from other people's servers, and their data by requests that browsers
refuse for local files. This runs it, puts the libraries next to the pages (from npm, pinned by their hashes, kept in the
user's cache), puts the data into a script, and checks that nothing external is left.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# npm package, version, integrity of its archive, and what is taken from it: {name in the archive: name in the site}.
PACKAGES = (
    (
        "jquery", "3.3.1",
        "sha512-Ubldcmxp5np52/ENotGxlLe6aGMvmF4R8S6tZjsP6Knsaxd/xp3Zrh50cG93lR6nPXyUFwzN3ZSOQI0wRJNdGg==",
        {"dist/jquery.min.js": "js/jquery.min.js", "LICENSE.txt": "licenses/jquery.txt"},
    ),
    (
        "flot", "0.8.3",
        "sha512-xg2otcTJDvS+ERK+my4wxG/ASq90QURXtoM4LhacCq0jQW2jbyjdttbRNqU2cPykrpMvJ6b2uSp6SAgYAzj9tQ==",
        {
            "jquery.flot.js": "js/jquery.flot.js",
            "jquery.flot.time.js": "js/jquery.flot.time.js",
            "jquery.flot.selection.js": "js/jquery.flot.selection.js",
            "jquery.flot.categories.js": "js/jquery.flot.categories.js",
            "LICENSE.txt": "licenses/flot.txt",
        },
    ),
    (
        "flot-orderbars", "1.0.0",
        "sha512-Jv51fvzevUjNXEeozpwEKfPjhiZhfiJddv0WHjduUTCmSF+7T5K7C9c9Y1wIVmUhDBv5fLMjgbwKecT0GIKPZA==",
        {"js/jquery.flot.orderBars.js": "js/jquery.flot.orderBars.js", "package.json": "licenses/flot-orderbars.json"},
    ),
    (
        "stupid-table-plugin", "1.1.3",
        "sha512-2Vk7XouQPxUQPRe9w0Fu7ZZ8kHLK7rDoLMsCgtKxRNJ7f4dSOGvW9CkHsq5wD6QsaEnWoyLBYH3xOEsrK3yWBg==",
        {"stupidtable.min.js": "js/stupidtable.min.js", "LICENSE": "licenses/stupid-table-plugin.txt"},
    ),
    (
        "blueimp-md5", "2.19.0",
        "sha512-DRQrD6gJyy8FbiE4s+bDoXS9hiW3Vbx5uCdwvcCf3zLHL+Iv7LtGHLpr+GZV8rHG8tK766FGYBwRbu8pELTt+w==",
        {"js/md5.min.js": "js/md5.min.js", "LICENSE.txt": "licenses/blueimp-md5.txt"},
    ),
    (
        "bootstrap", "3.1.1",
        "sha512-TAzqS8E/ISpVHP29gYhy+1NSV+FJwApDVQhDfgLYsIuUDJiqJzH2DfORN5tiu+Ie2iBLrzEG34t4Rf465cigqg==",
        {
            "dist/js/bootstrap.min.js": "js/bootstrap.min.js",
            "dist/css/bootstrap.min.css": "css/bootstrap.min.css",
            "dist/fonts/glyphicons-halflings-regular.woff": "fonts/glyphicons-halflings-regular.woff",
            "dist/fonts/glyphicons-halflings-regular.ttf": "fonts/glyphicons-halflings-regular.ttf",
            "LICENSE": "licenses/bootstrap.txt",
        },
    ),
)  # fmt: skip

TAG = re.compile(
    r'<script[^>]*\bsrc="(?P<script>https?://[^"]+)"[^>]*>\s*</script>'
    r'|<link[^>]*\bhref="(?P<style>https?://[^"]+)"[^>]*>',
    re.DOTALL,
)

SHIM = """(function () {
    // Requests for data that stand in data.js are answered from there; browsers refuse them for local files.
    var request = $.ajax;
    $.ajax = function (options) {
        var name = decodeURIComponent(String(options.url)).split("?")[0];
        var known = Object.prototype.hasOwnProperty.call(window.ASV_DATA, name);
        if (!known && name !== "swallow.ico" && !/^graphs\\//.test(name)) {
            return request.apply($, arguments);
        }
        var answer = $.Deferred();
        // Later, as any answer: the pages are not yet ready while they ask.
        setTimeout(function () {
            if (known) {
                answer.resolve(JSON.parse(window.ASV_DATA[name]));
            } else if (name === "swallow.ico") {
                answer.resolve("");
            } else {
                answer.reject();
            }
        }, 0);
        return answer.promise();
    };
})();
"""


def cache_folder() -> Path:
    """Where archives are kept between runs."""
    cache_variable = os.environ.get("SMIMBENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (
        Path(cache_variable)
        if cache_variable
        else (Path(base) if base else Path.home() / ".cache") / "smimbench"
    )


def integrity(path: Path) -> str:
    """Hash of a file in npm's notation."""
    return (
        "sha512-"
        + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    )


def fetch(name: str, version: str, expected: str, cache: Path) -> Path:
    """The archive of an npm package, from the cache or by ``npm pack``; never one with another hash."""
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"{name}-{version}.tgz"
    if archive.exists() and integrity(archive) == expected:
        return archive
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(
            f"npm is needed once, to fetch {name} {version} (install Node.js, or put the archive at {archive})"
        )
    with tempfile.TemporaryDirectory() as folder:
        call = [npm, "pack", "--silent", f"{name}@{version}"]
        process = subprocess.run(
            call, cwd=folder, capture_output=True, text=True, check=False
        )
        archives = list(Path(folder).glob("*.tgz"))
        if process.returncode or not archives:
            raise SystemExit(
                f"npm could not fetch {name} {version}: {' '.join(process.stderr.split())}"
            )
        if integrity(archives[0]) != expected:
            raise SystemExit(
                f"npm gave another {name} {version} than the one pinned here: {integrity(archives[0])}"
            )
        shutil.move(str(archives[0]), archive)
    return archive


def unpack(archive: Path, members: dict[str, str], vendor: Path) -> None:
    """Take some files out of an npm archive."""
    with tarfile.open(archive) as tar:
        for inside, name in members.items():
            stream = tar.extractfile(f"package/{inside}")
            if stream is None:
                raise SystemExit(f"{archive.name} does not hold {inside}")
            target = vendor / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(stream.read())


def stem(address: str) -> str:
    """What identifies a library in an address: its file's name, without version and ``.min``."""
    name = address.rsplit("/", 1)[-1].split("?")[0].replace(".min", "").lower()
    return re.sub(r"-\d[\d.]*(?=\.js$)", "", name)


def localise(page: str, vendor: Path) -> str:
    """The page with every external script and stylesheet replaced by the local copy."""
    copies = [p for p in sorted(vendor.rglob("*")) if p.suffix in (".js", ".css")]
    local_paths = {
        stem(p.name): p.relative_to(vendor.parent).as_posix() for p in copies
    }

    def replace(match: re.Match[str]) -> str:
        address = match["script"] or match["style"]
        name = stem(address)
        if name not in local_paths:
            raise SystemExit(
                f"this asv loads {address}, which is not among the packages of this file; add it"
            )
        if match["script"]:
            return f'<script src="{local_paths[name]}"></script>'
        return f'<link rel="stylesheet" href="{local_paths[name]}">'

    return TAG.sub(replace, page)


def data_script(html: Path) -> str:
    """All data of the site as one script: the text of each JSON file by its name."""
    files = [
        p
        for p in sorted(html.rglob("*.json"))
        if p.relative_to(html).parts[0] != "vendor"
    ]
    texts = {
        p.relative_to(html).as_posix(): p.read_text(encoding="utf-8") for p in files
    }
    # "</" would end the script element of a page that inlines this file.
    text = json.dumps(texts).replace("</", "<\\/")
    return f"window.ASV_DATA = {text};\n"


def pack(html: Path, cache: Path) -> None:
    """Make a published site self-contained, in place. Doing it twice changes nothing."""
    index = html / "index.html"
    if not index.exists():
        raise SystemExit(
            f"{index}: no such file; is this the folder that 'asv publish' wrote?"
        )
    vendor = html / "vendor"
    for name, version, expected, members in PACKAGES:
        unpack(fetch(name, version, expected, cache), members, vendor)
    (html / "data.js").write_text(data_script(html), encoding="utf-8")
    (vendor / "js" / "answer-from-data.js").write_text(SHIM, encoding="utf-8")
    page = localise(index.read_text(encoding="utf-8"), vendor)
    if "data.js" not in page:
        script = re.search(r"<script[^>]*\bsrc=\"asv\.js\"", page)
        if script is None:
            raise SystemExit(f"{index}: asv.js is not loaded where it was expected")
        ours = '<script src="data.js"></script>\n    <script src="vendor/js/answer-from-data.js"></script>\n    '
        page = page[: script.start()] + ours + page[script.start() :]
    remote_tags = [match.group(0) for match in TAG.finditer(page)]
    if remote_tags:
        raise SystemExit(f"{index}: still external: {remote_tags[0]}")
    index.write_text(page, encoding="utf-8")


def html_folder() -> Path:
    """Where asv.conf.json says that the site goes."""
    text = "\n".join(
        line
        for line in (ROOT / "asv.conf.json").read_text().splitlines()
        if not line.strip().startswith("//")
    )
    return ROOT / json.loads(text).get("html_dir", "html")


def main() -> None:
    """Run ``asv publish`` and pack what it wrote."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--html",
        type=Path,
        help="folder of the site [default: html_dir of asv.conf.json]",
    )
    parser.add_argument(
        "--only-pack", action="store_true", help="do not run 'asv publish' first"
    )
    options = parser.parse_args()
    html = options.html or html_folder()
    if not options.only_pack:
        asv = shutil.which("asv")
        call = [asv] if asv else [sys.executable, "-m", "asv"]
        call += ["publish", *(["--html-dir", str(html)] if options.html else [])]
        if subprocess.run(call, cwd=ROOT, check=False).returncode:
            raise SystemExit("asv publish failed")
    pack(html, cache_folder() / "asv-site")
    sys.stdout.write(f"open {html / 'index.html'}\n")


if __name__ == "__main__":
    main()
