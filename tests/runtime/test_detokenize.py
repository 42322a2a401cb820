import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.runtime.detokenize import detokenize

ENGLISH = [
    ("we go , or : do we ?", "we go, or: do we?"),
    ("well ... yes !", "well... yes!"),
    ("it &apos;s what we don &apos;t know &amp; can &apos;t", "it's what we don't know & can't"),
    ("they do n't", "they don't"),
    ("the dogs &apos; owner", "the dogs' owner"),
    ("in the &apos; 60s and &apos; 96", "in the '60s and '96"),
    ("he said &apos; the dogs &apos; and &apos; cats &apos; , or", "he said 'the dogs' and 'cats', or"),
    ("&quot; yes , &quot; she said , &quot; &apos; no &apos; ! &quot;", '"yes," she said, "\'no\'!"'),
    ("and so it ended . &quot;", 'and so it ended."'),
    ("done &quot; , he said", 'done", he said'),
    ("“ so ” and „ so “", "“so” and „so“"),
    ("a state @-@ of @-@ the @-@ art one", "a state-of-the-art one"),
    ("( laughter ) &#91; sic &#93; { x }", "(laughter) [sic] {x}"),
    ("for $ 40 or 5 % at 4 : 15", "for $40 or 5% at 4:15"),
    ("24 / 7 by # 8", "24/7 by #8"),
    ("a &lt; b &#124; c &gt; d", "a < b | c > d"),
    ("&amp;quot; is an escape", "&quot; is an escape"),
    ("one -- or two - go", "one -- or two - go"),
    ("", ""),
]
GERMAN = [
    ("geht &apos; s , mcdonald &apos; s.", "geht's, mcdonald's."),
    ("kate o &apos; malley und mcluhan &apos; schen", "kate o'malley und mcluhan'schen"),
    ("1 &apos; 000 und &apos; so &apos;", "1'000 und 'so'"),
    ("er sagt : &quot; ja . &quot; und geht", 'er sagt: "ja." und geht'),
    ("das » haus « , die ‚ tür ‘", "das »haus«, die ‚tür‘"),
    ("5 % von 30 $ oder $ 100", "5 % von 30 $ oder $100"),
    ("für 5 $ 3 bücher", "für 5 $ 3 bücher"),
    ("er sagt 'ja doch' laut", "er sagt 'ja doch' laut"),
    ("80 km / h", "80 km/h"),
]


@pytest.mark.parametrize(
    ("language", "text", "expected"), [("en", *pair) for pair in ENGLISH] + [("de", *pair) for pair in GERMAN]
)
def test_text_is_as_people_write_it(language, text, expected):
    assert detokenize(text, language) == expected


@given(st.text(st.sampled_from("ab1 .,:'\"“„()[/%$#-@i")), st.sampled_from(["de", "en"]))
def test_only_spaces_change(text, language):
    got = detokenize(text, language)
    assert "".join(got.split()) == "".join(text.replace(" @-@ ", "-").split())
    assert "  " not in got
    assert got == got.strip()


def test_other_languages_are_refused():
    with pytest.raises(G2Error, match="one of 'de', 'en' to .* got 'fr'; leave out --detokenize"):
        detokenize("l &apos; eau", "fr")
