"""Hub models that a new run needs: their availability is checked before torch and transformers are imported."""

from __future__ import annotations

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ModelError
from rlhf.models.sources import hub_options, model_source
from rlhf.pipeline.validate.inputs import is_hub_name, policies


def check_hub_models(recipe: RecipeConfig, *, until: str | None = None) -> None:
    """Ask for every model that a recipe names and no folder holds; each answer is kept for the process.

    Args:
        recipe: Of a run of which nothing is there yet: a finished stage needs its model no more.
        until: Later stages than this one are not looked at.

    Raises:
        ModelError: The hub has no such model, or it can't be reached and the model is not in its cache.
    """
    for name, stage in recipe.stages.items():
        for key, model in policies(stage):
            if model.path is None or not is_hub_name(model.path):
                continue
            try:
                hub_options(model_source(model.path), model.revision)
            except ModelError as err:
                raise ModelError(f"stages.{name}.{key}: {err}") from None
        if name == until:
            return
