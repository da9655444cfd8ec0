"""The manifests for Kubernetes hold to the schemas of its objects, with no member that it does not know."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.real.parts import ROOT, pip_env

MANIFESTS = sorted((ROOT / "configs").glob("*/kubernetes.yaml"))
VERSIONS = ("1.31", "1.37")  # of Kubernetes


def validate(version: str, path: Path) -> tuple[int, str]:
    """Validate a manifest. Return the exit code and the output."""
    validator = pip_env("kubernetes").parent / "kubernetes-validate"
    command = [str(validator), "--strict", "--kubernetes-version", version, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_everything_in_a_manifest(version: str, path: Path):
    code, output = validate(version, path)
    assert code == 0, output
    assert output.count("passed for resource") == path.read_text().count("\nkind: ")


def test_a_member_that_kubernetes_does_not_know_is_found(tmp_path: Path):
    (path,) = [manifest for manifest in MANIFESTS if manifest.parent.name == "deploy"]
    wrong = tmp_path / path.name
    wrong.write_text(path.read_text().replace("readOnlyRootFilesystem", "readOnlyRootFileSystem"))
    code, output = validate(VERSIONS[-1], wrong)
    assert (code, "readOnlyRootFileSystem" in output) == (1, True)
