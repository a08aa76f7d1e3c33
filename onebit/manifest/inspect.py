"""Reads a model directory into a `ContainerManifest`, collecting every finding in one run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onebit.container import Container
from onebit.families import derive_plan, special_tokens, template_traits
from onebit.findings import Finding, InputError, Severity, Where, error, note, warning
from onebit.manifest.deep import deep_findings
from onebit.manifest.json_file import read_json_object
from onebit.manifest.model import ContainerManifest, FileFacts, TemplateFacts, TokenizerFacts
from onebit.manifest.text_checks import check_template, check_tokenizer, read_template
from onebit.plan import Plan, bind, plan_differences, read_plan

CONTAINER = "model.q4nx"
FAST_LANE_FILES = ("lmhead.elf", "layer.pdi")

_MEND_TOKENIZER = "copy tokenizer.json from the original model, or convert the GGUF again"
_MEND_PLAN = "write it anew with `onebit plan DIR --write`, or delete it"

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all)."""


def inspect_directory(
    directory: Path,
    *,
    deep: bool = False,
    progress: Progress | None = None,
    stored_plan: bool = True,
) -> ContainerManifest:
    """Return the manifest of a model directory; what is wrong stands in its findings.

    Args:
        directory: A directory, or the path of the model.q4nx in one.
        deep: Read every tile, not only headers and samples.
        progress: Told how far a deep read is.
        stored_plan: Use and check plan.json if it is there; else derive the plan in any case.
    """
    if directory.name == CONTAINER and directory.is_file():
        directory = directory.parent
    place = _directory_finding(directory)
    if place is not None:
        return ContainerManifest(path=str(directory), findings=(place,))
    return _Inspection(directory, stored_plan).run(deep=deep, progress=progress)


def _directory_finding(directory: Path) -> Finding | None:
    where = Where(file=str(directory))
    try:
        if not directory.exists():
            return error("dir.missing", "is not there", "check the path", where)
        if not directory.is_dir():
            return error(
                "dir.not_directory",
                "is a file; a model directory is expected",
                "give the directory that holds model.q4nx, or convert a GGUF with `onebit convert`",
                where,
            )
        next(directory.iterdir(), None)
    except OSError as cause:
        what = f"cannot be read: {cause.strerror or cause}"
        return error("dir.unreadable", what, "check its owner and mode", where)
    return None


def _mend_config(directory: Path) -> str:
    return (
        "copy it from the model it was made of, or write it from the source: "
        f"`onebit convert --config-only MODEL.gguf {shlex.quote(str(directory))}`"
    )


class _Inspection:
    """One directory's inspection; each step adds to the findings and goes on."""

    def __init__(self, directory: Path, stored_plan: bool) -> None:
        self.directory = directory
        self.stored_plan = stored_plan
        self.findings: list[Finding] = []
        self.derived: Plan | None = None
        """The plan that config.json and the container give, whatever plan.json says."""

    def run(self, *, deep: bool, progress: Progress | None) -> ContainerManifest:
        config = self._json("config.json", _mend_config(self.directory))
        tokenizer = self._json("tokenizer.json", _MEND_TOKENIZER)
        tokenizer_config = self._optional_json("tokenizer_config.json")
        generation = self._optional_json("generation_config.json")
        template = self._attempt(read_template, self.directory, tokenizer_config or {})
        container = self._attempt(Container.open, self.directory / CONTAINER)
        plan, source = None, None
        try:
            if container is not None and config is not None:
                plan, source = self._plan(
                    config, container, generation or {}, tokenizer_config or {}, tokenizer or {},
                    template[1] if template else "",
                )  # fmt: skip
            facts = self._tokenizer_facts(tokenizer, plan or self.derived)
            shown = self._template_facts(template, plan)
            if container is not None and plan is not None:
                if deep:
                    self.findings += deep_findings(plan, container, progress)
                self._kernel_notes()
            return self._manifest(config, container, plan, source, facts, shown)
        finally:
            if container is not None:
                container.close()

    def _attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except InputError as cause:
            self.findings += cause.findings
            return None

    def _json(self, name: str, mend: str) -> dict[str, Any] | None:
        result: dict[str, Any] | None = self._attempt(read_json_object, self.directory / name, mend)
        return result

    def _optional_json(self, name: str) -> dict[str, Any] | None:
        if not (self.directory / name).exists():
            return None
        return self._json(name, f"mend or remove {name}")

    def _plan(
        self,
        config: dict[str, Any],
        container: Container,
        generation: dict[str, Any],
        tokenizer_config: dict[str, Any],
        tokenizer: dict[str, Any],
        template: str,
    ) -> tuple[Plan | None, str | None]:
        tokens = special_tokens(config, generation, tokenizer_config, tokenizer)
        derived = self._attempt(derive_plan, config, container, tokens, template_traits(template))
        if derived is not None:
            self.findings += derived.findings
            self.derived = derived.plan
        path = self.directory / "plan.json"
        if not self.stored_plan:
            return (derived.plan, "derived") if derived is not None else (None, None)
        if not path.exists():
            if derived is None:
                return None, None
            what = "no plan.json: the plan was derived from the family manifest"
            self.findings.append(note("plan.derived", what, Where(file=str(path))))
            return derived.plan, "derived"
        stored = self._attempt(read_plan, path)
        if stored is None or derived is None:
            return None, None
        differences = plan_differences(stored, derived.plan)
        if differences:
            self._stale_plan(path, stored, container, differences)
            return None, None
        self._attempt(bind, stored, container)
        return stored, "plan.json"

    def _stale_plan(
        self, path: Path, stored: Plan, container: Container, differences: list[str]
    ) -> None:
        refs = [*stored.tensors.values(), *(t for y in stored.layers for t in y.tensors.values())]
        absent = sorted({r.name for r in refs} - set(container.entries))
        what = f"disagrees with config.json and the container in: {', '.join(differences)}"
        if absent:
            more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            what += f"; names absent tensors {', '.join(absent[:5])}{more}"
        self.findings.append(error("plan.stale", what, _MEND_PLAN, Where(file=str(path))))

    def _tokenizer_facts(
        self, tokenizer: dict[str, Any] | None, plan: Plan | None
    ) -> TokenizerFacts | None:
        if tokenizer is None:
            return None
        facts, findings = check_tokenizer(self.directory / "tokenizer.json", tokenizer, plan)
        self.findings += findings
        return facts

    def _template_facts(
        self, template: tuple[Path, str] | None, plan: Plan | None
    ) -> TemplateFacts | None:
        if template is None:
            if plan is not None:
                self.findings.append(
                    warning(
                        "template.missing",
                        "no chat template: chat requests will be refused, completions work",
                        "add the model's chat_template.jinja, if it is a chat model",
                        Where(file=str(self.directory / "tokenizer_config.json")),
                    )
                )
            return None
        path, _ = template
        if plan is None:
            return TemplateFacts(source=path.name, renders=False)
        findings = check_template(self.directory, path, plan)
        self.findings += findings
        broken = any(f.severity is Severity.ERROR for f in findings)
        return TemplateFacts(source=path.name, renders=not broken)

    def _kernel_notes(self) -> None:
        if self._is_fast_lane():
            where = Where(file=str(self.directory / "npu"))
            self.findings.append(
                note("kernels.fast_lane", "whole-layer kernels of the fast lane are there", where)
            )

    def _is_fast_lane(self) -> bool:
        npu = self.directory / "npu"
        whole = any(npu.glob("layer_ctx*.elf")) if npu.is_dir() else False
        return whole and all((npu / name).is_file() for name in FAST_LANE_FILES)

    def _manifest(
        self,
        config: dict[str, Any] | None,
        container: Container | None,
        plan: Plan | None,
        source: str | None,
        tokenizer: TokenizerFacts | None,
        template: TemplateFacts | None,
    ) -> ContainerManifest:
        refs = [] if plan is None else [
            *plan.tensors.values(),
            *(ref for layer in plan.layers for ref in layer.tensors.values()),
        ]  # fmt: skip
        kinds = Counter(ref.kind.value for ref in {ref.name: ref for ref in refs}.values())
        model_type = (config or {}).get("model_type")
        npu = self.directory / "npu"
        return ContainerManifest(
            path=str(self.directory),
            files=tuple(
                FileFacts(name=p.name, bytes=p.stat().st_size)
                for p in sorted(self.directory.iterdir())
                if p.is_file()
            ),
            family=plan.family if plan else None,
            model_type=model_type if isinstance(model_type, str) else None,
            tensor_count=len(container.entries) if container else 0,
            tensor_kinds=dict(sorted(kinds.items())),
            metadata=dict(container.metadata) if container else {},
            plan=plan,
            plan_source=source,
            tokenizer=tokenizer,
            template=template,
            npu_dir=str(npu) if npu.is_dir() else None,
            fast_lane=self._is_fast_lane(),
            findings=tuple(self.findings),
        )
