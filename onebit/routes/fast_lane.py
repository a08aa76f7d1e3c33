"""Route `fast-lane`: one launch per layer with whole-layer kernels.

It recognises its directories. Its runtime is not there, and it says exactly that, so that such a
directory is never mistaken for a broken one.
"""

from __future__ import annotations

from onebit.config import RouteName
from onebit.findings import Refusal, Where, error
from onebit.routes.model_generic import PARTS
from onebit.routes.request import Request, Verdict
from onebit.routes.resolution import Resolution


class FastLane:
    """The route of directories with whole-layer kernels."""

    name: RouteName = "fast-lane"

    def examine(self, request: Request) -> Verdict:
        """Take a directory with whole-layer kernels, unless another device is asked for."""
        if request.model.kind != "directory":
            return Verdict(False, "the model is a GGUF file, without kernels beside it")
        if "model.q4nx" not in request.files:
            return Verdict(False, "the directory has no model.q4nx")
        npu = request.directory / "npu"
        layers = any(npu.glob("layer_ctx*.elf")) if npu.is_dir() else False
        missing = [] if layers else ["layer_ctx*.elf"]
        missing += [name for name in ("lmhead.elf", "layer.pdi") if not (npu / name).is_file()]
        if missing:
            return Verdict(False, f"no whole-layer kernels: npu/ has no {', '.join(missing)}")
        if request.config.device in ("cpu", "reference") and request.config.route == "auto":
            return Verdict(False, f"it runs on the NPU, and device is {request.config.device}")
        return Verdict(True, "npu/ holds whole-layer kernels")

    def resolve(self, request: Request) -> Resolution:
        """Refuse by name: the whole-layer runtime is not part of onebit."""
        missing = [part for part in PARTS if part not in request.files]
        if missing:
            mend = f"add {', '.join(missing)} and set `route: model-generic` for the per-op forward"
        else:
            mend = "set `route: model-generic` (--route model-generic) for the per-op forward"
        raise Refusal(
            error(
                "route.fast_lane_runtime",
                "this is a fast-lane directory (one launch per layer), and onebit has no runtime "
                "for whole-layer kernels",
                mend,
                Where(file=str(request.directory / "npu")),
            )
        )
