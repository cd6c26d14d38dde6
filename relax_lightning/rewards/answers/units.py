"""Units that may follow an answer, such as `10 cm`, and the currencies that may stand before it."""

from __future__ import annotations

CURRENCIES = {"\\$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "₽": "rouble", "₩": "won"}
"""Unit by sign."""

_ALIASES = {
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "meter": "meters metre metres",
    "km": "kms kilometer kilometers kilometre kilometres",
    "inch": "inches",
    "foot": "feet ft",
    "yard": "yards yd",
    "mile": "miles mi",
    "mph": "",
    "mg": "milligram milligrams",
    "gram": "grams gm",
    "kg": "kgs kilogram kilograms",
    "ounce": "ounces oz",
    "pound": "pounds lb lbs",
    "ml": "milliliter milliliters millilitre millilitres",
    "liter": "liters litre litres",
    "second": "seconds sec secs",
    "minute": "minutes mins",
    "hour": "hours hr hrs",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years",
    "degree": "degrees deg",
    "radian": "radians rad",
    "percent": "",
    "dollar": "dollars usd",
    "cent": "cents",
    "euro": "euros eur",
    "unit": "units",
    "point": "points",
    "way": "ways",
    "digit": "digits",
    "integer": "integers",
    "student": "students",
    "people": "person persons",
    "square": "sq",
    "cubic": "cu",
    "per": "",
}
_WORDS = {alias: unit for unit, aliases in _ALIASES.items() for alias in (unit, *aliases.split())}
_LETTERS = {"m": "meter", "g": "gram", "s": "second", "h": "hour", "L": "liter"}
"""Units in upright type only: in mathematics a letter is a variable."""


def unit_of(word: str, is_upright: bool) -> str | None:
    """The one name of a unit, such as `inch` for `inches`; None for a word that is none."""
    return _LETTERS.get(word) if is_upright and len(word) == 1 else _WORDS.get(word.casefold())
