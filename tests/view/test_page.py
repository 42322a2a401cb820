"""The page in a real browser: what a visitor does, and what it shows."""

import re

import pytest
import torch

import g2lstm
from tests.conftest import PATIENCE
from tests.view.test_server import GATES, expected_gates

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
expect.set_options(timeout=PATIENCE)

TEXT = "the cat sat on the mat ."
EXAMPLE = "a dog saw the cat , which ran ."
START = "#text=the+cat+sat+on+the+mat+.&a=g2"


def cells(page, column="a", layer=0, gate="input"):
    rows = page.locator(f"[data-column={column}] .words").nth(layer)
    return rows.locator(f".cell[data-gate={gate}]").all_inner_texts()


def type_sentence(page, text):
    page.get_by_label("Sentence", exact=True).fill(text)
    page.keyboard.press("Enter")


def words_of(page, column="a", layer=0):
    return page.locator(f"[data-column={column}] .words").nth(layer).locator(".word")


def tokens(page, column="a", layer=0):
    return page.locator(f"[data-column={column}] .words").nth(layer).locator(".token").all_inner_texts()


def wait_until(page, look, is_right):
    """What `look` finds as soon as it is right; the page's policy forbids the browser to wait by itself."""
    for _ in range(PATIENCE // 200):
        if is_right(found := look()):
            return found
        page.wait_for_timeout(200)
    raise AssertionError(found)


def all_equal(values):
    return all(value == values[0] for value in values)


def test_at_first_two_runs_read_an_example(open_page):
    page = open_page()
    assert page.get_by_label("Run", exact=True).input_value() == "g2"
    assert page.get_by_label("Run to compare with").input_value() == "lstm"
    assert tokens(page) == tokens(page, "b") == ["<eos>", *EXAMPLE.split()]
    assert cells(page) != cells(page, "b")


def test_a_typed_sentence_changes_the_heat_map(open_page, paths):
    page = open_page(START)
    before = cells(page)
    type_sentence(page, "no dog ran .")
    expect(words_of(page)).to_have_count(5)
    assert tokens(page) == ["<eos>", "no", "dog", "ran", "."]
    assert cells(page) != before[:5]
    for layer, gates in enumerate(expected_gates(paths[0], "no dog ran .")):
        for gate in GATES:
            means = [float(text.replace("1.0", "1")) for text in cells(page, layer=layer, gate=gate)]
            torch.testing.assert_close(torch.tensor(means), gates[gate].mean(1), rtol=0, atol=0.0051)
    shown = page.locator(".next li").all_inner_texts()
    assert len(shown) == 10
    assert all(re.search(r"\d\.\d %", line) for line in shown)


def test_typing_alone_is_enough_and_examples_can_be_picked(open_page):
    page = open_page(START)
    page.get_by_label("Sentence", exact=True).fill("a cat")
    expect(words_of(page)).to_have_count(3)
    page.get_by_label("Pick a sentence").select_option(index=1)
    expect(words_of(page)).to_have_count(10)
    assert page.get_by_label("Sentence", exact=True).input_value() == EXAMPLE


def test_runs_modes_layers_and_gates_can_be_switched(open_page):
    page = open_page(START)
    layers = page.locator("[data-column=a] .layers")
    soft = layers.text_content()
    page.get_by_label("Run", exact=True).select_option("lstm")
    expect(layers).not_to_have_text(soft)
    other = layers.text_content()
    page.get_by_label("Gate mode").first.select_option("hard")
    expect(layers).not_to_have_text(other)
    assert page.locator("[data-column=a] .words").count() == 2
    second = cells(page, layer=1)
    page.locator("#layer").select_option("layers.1")
    assert page.locator("[data-column=a] .words").count() == 1
    assert cells(page) == second
    page.locator("#rows input[value=forget]").check()
    assert page.locator("[data-column=a] .word").first.locator(".cell").count() == 1
    assert cells(page, gate="input") == []
    page.locator("#value").select_option("decided")
    assert set(cells(page, gate="forget")) == {"1.0"}  # hard gates are all decided


def test_two_runs_side_by_side_show_the_units_of_one_word(open_page):
    page = open_page(f"{START}&b=lstm")
    page.locator("[data-column=a] .words").nth(1).locator(".word").nth(2).locator("[data-gate=input]").click()
    page.wait_for_selector("[data-column=b] .units > canvas")
    page.wait_for_selector("[data-column=b] .plot .main-svg")
    for column in "ab":
        panel = page.locator(f"[data-column={column}] .units")
        expect(panel.locator("h3").first).to_have_text("Units of “cat” in layer 2")
        assert panel.locator("input[value=input]").is_checked()
        assert "6 units: mean" in panel.inner_text()
    a, b = (page.locator(f"[data-column={c}] .units > canvas").get_attribute("aria-label") for c in "ab")
    assert a != b
    page.locator("[data-column=a]").get_by_label("Unit", exact=True).fill("3")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-column=b] .plot .xtick")
    expect(page.locator("[data-column=b] .units .plot").nth(1).locator(".xtick")).to_have_count(8)
    page.locator("[data-column=a]").get_by_role("button", name="Close").click()
    assert page.locator(".units:visible").count() == 0


def test_a_permalink_shows_the_same(open_page):
    page = open_page(f"{START}&b=lstm")
    page.get_by_label("Gate mode").nth(1).select_option("tempered")
    page.locator("#layer").select_option("layers.1")
    page.locator("#rows input[value=output]").check()
    page.get_by_label("stretch colours").check()
    page.locator("[data-column=b] .word").nth(3).click()
    page.wait_for_selector("[data-column=b] .plot .main-svg")
    link = page.url[page.url.index("#") :]
    other = open_page(link, wait="[data-column=b] .plot .main-svg")
    assert other.url == page.url
    looks = ("#columns", "#layer", ".legend")
    wait_until(page, lambda: [[one.locator(look).inner_text() for look in looks] for one in (page, other)], all_equal)
    assert other.locator("[data-column=b] [aria-pressed=true] .token").inner_text() == "sat"
    assert cells(other, "b", gate="output") == cells(page, "b", gate="output")
    assert other.locator("[data-column=b] select").nth(1).input_value() == "tempered"


def test_links_that_make_no_sense_are_harmless(open_page):
    page = open_page(
        "#text=the+cat&a=nowhere&rows=x&agate=open&at=layers.9:99&unit=-4&layer=none&__proto__=1", wait=None
    )
    page.wait_for_selector("text=The link is for the run “nowhere”")
    page.get_by_label("Run", exact=True).select_option("g2")
    page.wait_for_selector(".word")
    assert tokens(page) == ["<eos>", "the", "cat"]
    assert page.locator(".units:visible").count() == 0


def test_by_keyboard(open_page):
    page = open_page(START)
    words = page.locator("[data-column=a] .words").first.locator(".word")
    words.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.position") == "2"
    assert page.locator("#tip").inner_text().startswith("cat")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('.words').dataset.layer") == "layers.1"
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".units > canvas")
    expect(page.locator(".units h3").first).to_have_text("Units of “the” in layer 2")
    page.wait_for_selector(".plot .main-svg")
    assert page.evaluate("document.activeElement.dataset.position") == "1"  # the focus is where it was
    named = "e => e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()"
    assert page.evaluate(f"[...document.querySelectorAll('select, input, textarea, button')].every({named})")


def test_hovering_shows_the_values(open_page, paths):
    page = open_page(START)
    page.locator("[data-column=a] .word").nth(2).hover()
    value = expected_gates(paths[0], TEXT)[0]["forget"][2].mean().item()
    assert f"forget {value:.4f}"[:-1] in page.locator("#tip").inner_text()


def test_html_in_the_text_stays_text(open_page):
    page = open_page(START)
    evil = "<img src=x onerror=alert(1)> <script>alert(2)</script> &amp; cat"
    page.on("dialog", lambda dialog: open_page.complaints.append(dialog.message))
    type_sentence(page, evil)
    page.wait_for_selector("text=<script>alert(2)</script>")
    assert tokens(page)[1:] == evil.split()
    page.locator("[data-column=a] .word").nth(4).click()
    page.wait_for_selector(".units > canvas")
    page.locator("[data-column=a]").get_by_label("Unit", exact=True).fill("1")
    page.keyboard.press("Enter")
    expect(page.locator("[data-column=a] .units .plot").nth(1).locator(".xtick")).to_have_count(7)
    assert page.locator("main img, main script").count() == 0


def test_messages(open_page):
    page = open_page(START)
    status = page.locator("[data-column=a] .status")
    type_sentence(page, "")
    page.wait_for_selector("text=Type a sentence, or pick one")
    type_sentence(page, "cat " * 201)
    page.wait_for_selector("text=The sentence has 201 words. Shorten it to at most 200.")
    type_sentence(page, "x" * 4001)
    page.wait_for_selector("text=The text has 4,001 characters")
    type_sentence(page, "zebras yodel")
    page.wait_for_selector("text=None of these words is in the model’s vocabulary")
    assert page.locator("[data-column=a] .word.unknown").count() == 4
    type_sentence(page, "the cats sat")
    page.wait_for_selector("text=1 of 3 words is unknown")
    type_sentence(page, TEXT)
    expect(words_of(page)).to_have_count(8)
    assert status.inner_text() == ""
    assert [c for c in open_page.complaints if "400" not in c] == []
    open_page.complaints.clear()  # the browser reports the refused request itself


def test_while_a_run_loads_and_when_it_failed(open_page):
    page = open_page(START)
    facts = tell_of_run(page, 0, state="loading", message="its file is broken")
    page.wait_for_selector("text=g2 is loading …")
    facts["state"] = "failed"
    page.wait_for_selector("text=g2 cannot be shown: its file is broken")


def test_when_the_server_is_gone_and_comes_back(open_page):
    page = open_page(START)
    page.route("**/api/**", lambda route: route.abort())
    type_sentence(page, "a dog")
    page.wait_for_selector("text=The server doesn’t answer")
    page.unroute("**/api/**")
    expect(words_of(page)).to_have_count(3)
    assert page.locator("#gone").is_hidden()
    open_page.complaints.clear()  # the browser reports the failed requests itself


def test_a_translation_and_its_attention(open_page):
    page = open_page("#a=mt&text=die+katze+lief+.")
    assert page.locator("[data-column=a] .words").count() == 5
    produced = page.locator(".attention tbody tr").count()
    assert page.locator(".attention thead th").all_inner_texts()[-1] == "<eos>"
    assert page.locator(".attention tbody td").count() == produced * len(tokens(page))
    page.locator("#layer").select_option("encoder.0 backward")
    assert page.locator("[data-column=a] h3").first.inner_text().startswith("Encoder 1, backward")


def bars(page, column):
    return page.evaluate(
        "column => [...document.querySelectorAll(`[data-column=${column}] .next li`)].map(item =>"
        " [parseFloat(item.querySelector('.bar').style.width), parseFloat(item.querySelector('.number').textContent)])",
        column,
    )


def test_columns_share_a_scale_and_stand_at_one_height(open_page):
    page = open_page(f"{START}&b=lstm&at=layers.0:2")
    page.wait_for_selector("[data-column=b] .plot .main-svg")
    both = {column: bars(page, column) for column in "ab"}
    most = max(share for each in both.values() for _, share in each)
    assert max(width for each in both.values() for width, _ in each) == 100
    for each in both.values():
        for width, share in each:
            assert width == pytest.approx(
                max(100 * share / most, 0.5), abs=100 * 0.11 / most
            )  # shares have one decimal
    page.evaluate("document.querySelector('[data-column=b] .facts').textContent = 'much is said of one '.repeat(40)")
    for part in (".layers", ".units", ".below", ".outcomes", ".split"):
        both = [page.locator(f"[data-column={column}] {part}") for column in "ab"]
        wait_until(
            page, lambda both=both: [one.bounding_box()["y"] for one in both], all_equal
        )  # what is drawn moves them
    page.set_viewport_size({"width": 700, "height": 900})
    tops = [page.locator(f"[data-column={column}] .layers").bounding_box()["y"] for column in "ab"]
    assert tops[1] > tops[0] + 200  # one below the other


def test_the_longest_bar_of_both_columns_is_the_likeliest_word_of_all(open_page):
    page = open_page(START)

    def answer(route):
        real = route.fetch().json()
        if route.request.post_data_json["run"] == "lstm":
            real["next_words"] = [[word, share / 4] for word, share in real["next_words"]]
        route.fulfill(json=real)

    page.route("**/api/read", answer)
    page.get_by_label("Run to compare with").select_option("lstm")
    page.wait_for_selector("[data-column=b] .next li")
    longest = {column: max(width for width, _ in bars(page, column)) for column in "ab"}
    assert longest["a"] == 100
    assert longest["b"] < 50


def test_each_word_has_its_surprisal(open_page, paths):
    page = open_page(START)
    bits = g2lstm.load(paths[0]).read(TEXT).surprisal["text"]
    strips = page.locator("[data-column=a] .words").first.locator(".surprise .bar")
    widths = strips.evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert widths[0] == 0
    assert widths[1:] == pytest.approx([100 * each / 8 for each in bits], abs=0.02)
    assert page.locator("[data-column=a] .words").nth(1).locator(".surprise").count() == 0
    words_of(page).nth(2).hover()
    assert f"surprise {bits[1]:.1f} bits" in page.locator("#tip").inner_text()
    translation = open_page("#a=mt&text=die+katze+lief+.")
    shown = [translation.locator(".words").nth(k).locator(".surprise").count() for k in range(5)]
    assert shown[:3] == [0, 0, 0]
    assert shown[3] > 0


def test_a_sentence_grows_word_by_word(open_page):
    page = open_page(f"{START}&b=lstm")
    likeliest = page.locator("[data-column=b] .next li .token").all_inner_texts()
    word = next(each for each in likeliest if each != "<eos>")
    back = page.locator("[data-column=b]").get_by_role("button", name="Back")
    assert back.is_disabled()
    page.locator("[data-column=b]").get_by_role("button", name="Add the likeliest").press("Enter")
    expect(words_of(page)).to_have_count(9)
    assert tokens(page) == tokens(page, "b") == ["<eos>", *TEXT.split(), word]
    assert page.evaluate("document.activeElement.textContent") == "Add the likeliest"
    offered = page.locator("[data-column=a] .next li .token").all_inner_texts()
    page.evaluate("Math.random = () => 1 - 1e-9")  # draws the least likely word on offer
    page.locator("[data-column=a]").get_by_role("button", name="Draw one").click()
    expect(words_of(page)).to_have_count(10)
    assert tokens(page)[-1] == [each for each in offered if each not in ("<eos>", "<unk>")][-1]
    picked = page.locator("[data-column=a] .next li .token").all_inner_texts()
    picked = next(each for each in picked if each not in ("<eos>", "<unk>"))
    page.locator("[data-column=a] .next").get_by_role("button", name=picked, exact=True).click()
    expect(words_of(page)).to_have_count(11)
    for count in (10, 9, 8):
        back.click()
        expect(words_of(page)).to_have_count(count)
    assert tokens(page) == ["<eos>", *TEXT.split()]
    assert back.is_disabled()


def test_histograms_over_many_sentences(open_page):
    page = open_page(START)
    page.get_by_text("Gates over many sentences").first.click()
    page.wait_for_selector("text=text tokens of valid; evaluation, soft gates")
    page.wait_for_selector(".split .main-svg")
    assert page.locator("[data-column=a] .split .plot").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_without_sideways_scrolling(open_page, scheme):
    page = open_page(f"{START}&b=lstm&at=layers.0:2&unit=1", width=360, height=740, scheme=scheme)
    page.wait_for_selector(".plot .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.locator("[data-column=a] .words li[data-labels]").count() > 2  # the letters stand at each new line
    lightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(lightness) < 200) == (scheme == "dark")


def test_the_theme_can_be_chosen_and_is_kept(open_page):
    page = open_page(START)
    # All cells: the middle of the colours, a gate of one half, is the same in the light and in the dark.
    colours = "[...document.querySelectorAll('.cell')].map(cell => getComputedStyle(cell).backgroundColor)"
    ramp = "document.getElementById('ramp').style.background.match(/rgb\\(.*?\\)/g)"
    light, light_ramp = page.evaluate(colours), page.evaluate(ramp)
    for _ in range(2):
        page.get_by_role("button", name="Theme").click()
    assert page.get_by_role("button", name="Theme: dark").is_visible()
    assert page.evaluate(colours) != light
    assert page.evaluate(ramp) == light_ramp[::-1] != light_ramp
    page.reload()
    page.wait_for_selector(".word")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_plotly_comes_only_when_it_is_needed(open_page):
    page = open_page(START)
    assert page.evaluate("performance.getEntriesByType('resource').filter(e => e.name.includes('plotly')).length") == 0
    page.locator("[data-column=a] .word").nth(1).click()
    page.wait_for_selector(".plot .main-svg")
    assert page.evaluate("performance.getEntriesByType('resource').filter(e => e.name.includes('plotly')).length") == 1


SCALES = """selector => [...document.querySelectorAll(selector)].filter(plot => plot.layout && plot.checkVisibility())
  .map(plot => [plot.layout.yaxis.range[1], 1.05 * Math.max(...plot.data.flatMap(curve => curve.y))])"""


def wait_for_scale(page, selector, count):
    """Until so many drawings have the scale of the highest of them; the ends that each would have by itself."""

    def is_shared(found):
        return len(found) == count and all(end == max(own for _, own in found) for end, _ in found)

    return [own for _, own in wait_until(page, lambda: page.evaluate(SCALES, selector), is_shared)]


def test_what_is_compared_has_one_scale(open_page):
    page = open_page(f"{START}&b=lstm&at=layers.1:2&layer=layers.1")
    wait_for_scale(page, ".units .plot", 2)
    for column in "ab":
        page.locator(f"[data-column={column}] summary").click()
    own = wait_for_scale(page, ".split .plot", 2)
    assert own[0] != own[1]
    page.get_by_label("Run to compare with").select_option("")
    wait_for_scale(page, ".split .plot", 1)
    wait_for_scale(page, ".units .plot", 1)


def test_the_units_stand_below_their_layer_and_what_was_clicked_stays(open_page):
    page = open_page(START, width=360, height=740)
    words_of(page).nth(2).click()
    page.wait_for_selector(".plot .main-svg")
    tops = [
        page.locator(look).first.bounding_box()["y"]
        for look in ("[data-layer='layers.0']", ".units", "#columns .below")
    ]
    assert tops == sorted(tops)
    assert tokens(page, layer=1) == tokens(page)
    second = words_of(page, layer=1).nth(3)
    second.scroll_into_view_if_needed()
    before = second.bounding_box()["y"]
    second.click()
    expect(page.locator(".units h3").first).to_have_text("Units of “sat” in layer 2")
    assert words_of(page, layer=1).nth(3).bounding_box()["y"] == pytest.approx(before, abs=3)
    page.locator("[data-column=a]").get_by_role("button", name="Close").press("Enter")
    assert page.locator(".units:visible").count() == 0
    focused = page.evaluate(
        "[document.activeElement.closest('.words').dataset.layer, document.activeElement.ariaLabel]"
    )
    assert focused[0] == "layers.1"
    assert focused[1].startswith("sat: ")


def test_a_tip_goes_with_its_word(open_page):
    page = open_page(START)
    page.get_by_label("Sentence", exact=True).focus()
    words_of(page).nth(7).hover()
    assert page.locator("#tip").is_visible()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("a cat")
    expect(words_of(page)).to_have_count(3)
    expect(page.locator("#tip")).to_be_hidden()


def tell_of_run(page, number, **facts):
    """Loads the page again, to which the server then says something else of a run; what it says can be changed."""

    def answer(route):
        real = route.fetch().json()
        real["runs"][number] |= facts
        route.fulfill(json=real)

    page.route("**/api/runs", answer)
    page.reload()
    return facts


def test_an_open_list_stays_while_another_run_loads(open_page):
    page = open_page(START)
    tell_of_run(page, 2, state="loading")
    page.wait_for_selector(".word")
    page.evaluate("document.querySelector('[data-column=a] select').options[1].isTheSame = true")
    for _ in range(3):  # after the second the first is drawn
        with page.expect_response("**/api/runs"):
            pass
    assert page.evaluate("document.querySelector('[data-column=a] select').options[1].isTheSame")
    page.unroute_all(behavior="wait")


def test_gates_are_read_as_the_recipe_says_unless_another_reading_is_chosen(open_page):
    page = open_page(START)
    tell_of_run(page, 0, gate="hard")
    page.locator("#value").select_option("decided")
    expect(words_of(page)).to_have_count(8)
    reading = page.get_by_label("Gate mode").first
    assert reading.input_value() == "hard"
    assert set(cells(page, gate="forget")) == {"1.0"}
    reading.select_option("soft")
    expect(page.locator("[data-column=a] .cell[data-gate=forget]").nth(2)).not_to_have_text("1.0")
    assert "agate=soft" in page.url
    page.unroute_all(behavior="wait")
