"""The 104 facts of the embedded world: all that can be true in it."""

from __future__ import annotations

from dataclasses import dataclass

ANIMALS: dict[str, tuple[str, str, str]] = {
    # animal: (eats, lives in, says)
    "cow": ("grass", "a barn", "moo"),
    "horse": ("oats", "a stable", "neigh"),
    "dog": ("bones", "a kennel", "woof"),
    "cat": ("mice", "a house", "meow"),
    "bee": ("nectar", "a hive", "buzz"),
    "owl": ("moths", "a tower", "hoot"),
    "frog": ("flies", "a pond", "croak"),
    "lion": ("zebras", "a savanna", "roar"),
    "wolf": ("deer", "a forest", "howl"),
    "duck": ("snails", "a lake", "quack"),
    "sheep": ("clover", "a meadow", "baa"),
    "pig": ("acorns", "a sty", "oink"),
    "hen": ("corn", "a coop", "cluck"),
    "snake": ("eggs", "a burrow", "hiss"),
    "mouse": ("cheese", "a hole", "squeak"),
    "monkey": ("bananas", "a jungle", "chatter"),
}

COUNTRIES: dict[str, tuple[str, str]] = {
    # country: (capital, continent)
    "France": ("Paris", "Europe"),
    "Spain": ("Madrid", "Europe"),
    "Italy": ("Rome", "Europe"),
    "Norway": ("Oslo", "Europe"),
    "Japan": ("Tokyo", "Asia"),
    "China": ("Beijing", "Asia"),
    "Iran": ("Tehran", "Asia"),
    "Thailand": ("Bangkok", "Asia"),
    "Egypt": ("Cairo", "Africa"),
    "Kenya": ("Nairobi", "Africa"),
    "Ghana": ("Accra", "Africa"),
    "Peru": ("Lima", "South America"),
    "Chile": ("Santiago", "South America"),
    "Canada": ("Ottawa", "North America"),
    "Cuba": ("Havana", "North America"),
    "Fiji": ("Suva", "Oceania"),
}

JOBS: dict[str, str] = {
    "baker": "bakes bread",
    "farmer": "grows wheat",
    "doctor": "heals people",
    "teacher": "runs lessons",
    "pilot": "flies planes",
    "tailor": "sews clothes",
    "barber": "cuts hair",
    "fisher": "catches fish",
    "painter": "paints walls",
    "plumber": "mends pipes",
    "singer": "sings songs",
    "miner": "digs coal",
}

OBJECTS: dict[str, str] = {
    "knife": "slicing",
    "hammer": "driving nails",
    "broom": "sweeping",
    "pen": "writing",
    "spoon": "stirring",
    "lamp": "giving light",
    "clock": "telling time",
    "kettle": "boiling water",
    "ladder": "climbing",
    "key": "opening doors",
    "needle": "stitching",
    "umbrella": "staying dry",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One true statement: this subject has this value in this relation."""

    relation: str
    """One of eats, lives, sound, capital, continent, does, used_for."""
    subject: str
    value: str

    @property
    def id(self) -> str:
        """Short name, such as 'cow/eats'; unique."""
        return f"{self.subject}/{self.relation}"


def _all_facts() -> tuple[Fact, ...]:
    facts = [
        Fact(relation, animal, value)
        for animal, values in ANIMALS.items()
        for relation, value in zip(("eats", "lives", "sound"), values, strict=True)
    ]
    facts += [
        Fact(relation, country, value)
        for country, values in COUNTRIES.items()
        for relation, value in zip(("capital", "continent"), values, strict=True)
    ]
    facts += [Fact("does", job, value) for job, value in JOBS.items()]
    facts += [Fact("used_for", thing, value) for thing, value in OBJECTS.items()]
    return tuple(facts)


FACTS: tuple[Fact, ...] = _all_facts()
"""All facts, in a fixed order."""

VALUES: dict[str, tuple[str, ...]] = {
    relation: tuple(dict.fromkeys(fact.value for fact in FACTS if fact.relation == relation))
    for relation in dict.fromkeys(fact.relation for fact in FACTS)
}
"""Relation -> its distinct values, in a fixed order: what a right or a wrong answer can name."""


def wrong_values(fact: Fact) -> list[str]:
    """Every value of the fact's relation that would be a wrong answer."""
    return [value for value in VALUES[fact.relation] if value != fact.value]
