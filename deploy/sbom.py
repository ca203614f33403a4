#!/usr/bin/python3
"""Prints a bill of materials of ckv as SPDX 2.3 JSON: what is built with what, from deploy/packages.txt and the
versions that are installed here.

    python3 deploy/sbom.py --version 0.1.0
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# Groups of packages.txt whose packages end up in what is built, or build it.
GROUPS = ("build", "rdma")
# A package whose name ends so is linked or included; others are tools.
LIBRARY = "-dev"


def listed():
    """(name, what for) of each package, once."""
    found = {}
    for line in (HERE / "packages.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        group, name, why = line.split(None, 2)
        if group == "build" or (group in GROUPS and name.endswith(LIBRARY)):
            found.setdefault(name, why)
    return found.items()


def installed(name):
    """(version, architecture), or nothing if it is not installed."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version} ${Architecture}", name],
                          text=True, capture_output=True)
    words = done.stdout.split()
    return (words[1], words[2]) if done.returncode == 0 and words[0] == "installed" else None


def package(spdx_id, name, version, **more):
    return {"SPDXID": spdx_id, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", **more}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    version = parser.parse_args().version
    ckv = "SPDXRef-ckv"
    packages = [package(ckv, "ckv", version, comment="ckv has no licence yet.")]
    links = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": ckv}]
    for name, why in listed():
        there = installed(name)
        if there is None:
            print(f"sbom: {name} is not installed, and left out", file=sys.stderr)
            continue
        spdx_id = "SPDXRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in name)
        packages.append(package(
            spdx_id, name, there[0], supplier="Organization: Debian", comment=why,
            externalRefs=[{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                           "referenceLocator": f"pkg:deb/debian/{name.replace('+', '%2B')}@{there[0]}?arch={there[1]}"}]))
        kind = "BUILD_DEPENDENCY_OF" if name.endswith(LIBRARY) else "BUILD_TOOL_OF"
        links.append({"spdxElementId": spdx_id, "relationshipType": kind, "relatedSpdxElement": ckv})
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")) or
                                              (HERE / "packages.txt").stat().st_mtime, datetime.timezone.utc)
    digest = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
    print(json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"ckv-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/ckv-{version}-{digest[:32]}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: ckv-sbom"]},
        "packages": packages, "relationships": links}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
