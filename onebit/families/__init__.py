"""Model families as data, and the derivation of a model's plan from them."""

from onebit.families.derive import Derived, derive_plan, scale_findings
from onebit.families.load import family_for, family_for_arch, load_families, load_family
from onebit.families.model import Family
from onebit.families.template import Traits, template_traits
from onebit.families.tokens import special_tokens

__all__ = [
    "Derived",
    "Family",
    "Traits",
    "derive_plan",
    "family_for",
    "family_for_arch",
    "load_families",
    "load_family",
    "scale_findings",
    "special_tokens",
    "template_traits",
]
