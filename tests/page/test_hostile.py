"""Ways in, numbered: each is tried on a real page over a real socket, and none leads anywhere."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgumentError, ConfigurationError
from headrace.page.data.media import TYPES
from headrace.page.guard.forms import BODY_S
from headrace.page.guard.hosts import is_known_host
from headrace.page.guard.middleware import FILE_POLICY, MAX_BODY_BYTES, POLICY, STYLE
from headrace.page.guard.sessions import IDLE_S, LIFE_S, MAX_PER_CALLER, MAX_SESSIONS, Sessions
from headrace.page.settings import PageSettings
from support.datasets import small_table, write_dataset
from support.page_samples import FILES, NAME, SCRIPT, TURNED, hostile_table
from support.paged import Paged, paged, write_tokens
from support.waiting import until


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paged]:
    """Show a dataset whose every value was chosen by an enemy."""
    folder = str(tmp_path_factory.mktemp("hostile"))
    write_dataset(folder, hostile_table(), shard_samples=[7])
    with paged({"hostile": folder}) as running:
        yield running


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Paged, Path]]:
    """Show two tenants a dataset each."""
    folder = tmp_path_factory.mktemp("tenants")
    for name in ("red", "blue"):
        write_dataset(str(folder / name), small_table(100), shard_samples=[100])
    tokens = write_tokens(folder / "tokens.json", {"anna": ["red"], "bert": ["blue"]})
    urls = {name: str(folder / name) for name in ("red", "blue")}
    with paged(urls, tokens=tokens, hosts=("page.example",)) as running:
        yield running, tokens


# 1. Names, headers and methods.


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost", "[::1", ""],
)
def test_01_a_site_that_leads_here_by_its_own_name_is_refused(hostile: Paged, host: str) -> None:
    """DNS rebinding: the name is not one of ours, whatever address it has."""
    assert 421 == hostile.ask("/", headers={"host": host}).status


def test_02_two_hosts_are_no_host(hostile: Paged) -> None:
    """Which of them a proxy before us goes by is not guessed."""
    with socket.create_connection(hostile.address, timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")

        assert plain.recv(64).split()[1] in {b"400", b"421"}


def test_03_known_names_pass(hostile: Paged, tenants: tuple[Paged, Path]) -> None:
    """Localhost, addresses in digits, and names that were given."""
    port = hostile.address[1]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "10.1.2.3"):
        assert 200 == hostile.ask("/", headers={"host": host}).status
    assert 200 == tenants[0].ask("/login", headers={"host": "Page.Example:8080"}).status


@given(st.text(max_size=40))
def test_04_no_text_is_a_host_by_accident(text: str) -> None:
    """What is let through is localhost, a known name or an address, with a port or without."""
    if is_known_host(text, {"page.example"}):
        assert re.fullmatch(r"(?i)(localhost|page\.example|[\d.]+|\[[\da-f:.]+\])(:\d+)?", text)


@pytest.mark.parametrize(
    "target", ["/", "/d/hostile", "/d/hostile/samples", "/nope", "/static/page.js"]
)
def test_05_every_answer_forbids_what_it_does_not_need(hostile: Paged, target: str) -> None:
    """No script but ours, no frame, no guess of types, nothing kept or told elsewhere."""
    headers = hostile.ask(target).headers

    assert POLICY == headers["content-security-policy"]
    assert "unsafe" not in POLICY
    assert "http" not in POLICY.replace("http-equiv", "")
    assert "nosniff" == headers["x-content-type-options"]
    assert "DENY" == headers["x-frame-options"]
    assert "same-origin" == headers["referrer-policy"]
    assert "same-origin" == headers["cross-origin-resource-policy"]
    assert "server" not in headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT"])
def test_06_other_methods_are_refused(hostile: Paged, method: str) -> None:
    """There is nothing to change."""
    assert hostile.ask("/", method=method).status in {400, 405}


def test_07_what_is_too_long_is_refused_at_once(hostile: Paged) -> None:
    """Targets, headers and bodies have bounds, and a body that lies about its length has too."""
    assert 414 == hostile.ask("/?" + "a" * 9000).status
    assert 431 == hostile.ask("/", headers={"x-long": "a" * 40_000}).status
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert _is_refused(hostile, form, b"a" * (MAX_BODY_BYTES + 1))
    parts = b"".join(b"10000\r\n" + b"a" * 65536 + b"\r\n" for _ in range(17)) + b"0\r\n\r\n"
    assert _is_refused(hostile, {**form, "transfer-encoding": "chunked"}, parts)


def _is_refused(page: Paged, headers: dict[str, str], body: bytes) -> bool:
    """Say whether a body was refused; a connection that is cut before it was sent is a refusal."""
    try:
        answer = page.ask("/login", method="POST", headers=headers, body=body)
    except ConnectionError:
        return True
    return answer.status == 413


def test_08_a_browser_that_sends_no_request_is_cut_off(tmp_path: Path) -> None:
    """Half a request holds no connection for ever."""
    write_dataset(str(tmp_path), small_table(10), shard_samples=[10])
    with (
        paged({"small": str(tmp_path)}, request_s=0.2) as page,
        socket.create_connection(page.address, timeout=30) as plain,
    ):
        plain.sendall(b"GET / HTTP/1.1\r\nHost: loc")

        assert _is_cut(plain)
        assert 200 == page.ask("/").status


def _is_cut(plain: socket.socket) -> bool:
    try:
        return plain.recv(1024) == b""
    except ConnectionResetError:
        return True


def test_09_many_idle_connections_leave_room_for_one_that_asks(hostile: Paged) -> None:
    """They are counted, and those that come are told at once where there are too many."""
    idle = [socket.create_connection(hostile.address, timeout=30) for _ in range(40)]
    try:
        assert 200 == hostile.ask("/").status
    finally:
        for one in idle:
            one.close()


# 2. Who is let in.


def test_10_beyond_this_machine_nobody_is_let_in_without_a_token() -> None:
    """Such a page does not start."""
    for listen in ("0.0.0.0:8080", "[::]:8080", "10.0.0.7:0", "myhost:8080"):
        with pytest.raises(BadArgumentError, match="tokens"):
            PageSettings(listen=listen)
        assert PageSettings(listen=listen, tokens="tokens.json").listen == listen


@pytest.mark.parametrize(
    "target", ["/", "/d/red", "/d/red/samples", "/d/red/file/0/3", "/live", "/run"]
)
def test_11_without_a_session_there_is_a_form_and_nothing_else(
    tenants: tuple[Paged, Path], target: str
) -> None:
    """Of what there is not even a name is told."""
    page, _ = tenants
    for headers in ({}, {"cookie": "headrace-page=x"}, {"authorization": "Bearer " + "anna" * 16}):
        answer = page.ask(target, headers=headers)

        assert 401 == answer.status
        assert 'type="password"' in answer.text
        assert "small" not in answer.text.replace(STYLE, "")


def test_12_a_token_in_the_address_opens_nothing(tenants: tuple[Paged, Path]) -> None:
    """Addresses end up in logs, so they are not looked at for tokens."""
    assert 401 == tenants[0].ask("/?token=" + "anna" * 16).status
    assert "headrace-page=" not in str(tenants[0].ask("/login?token=" + "anna" * 16).headers)


def test_13_a_session_says_nothing_and_belongs_to_the_browser_alone(
    tenants: tuple[Paged, Path],
) -> None:
    """An opaque number that no script reads, and that other sites' forms do not carry."""
    cookie = tenants[0].login("anna" * 16).headers["set-cookie"]

    assert re.match(r"headrace-page=[\w-]{43};", cookie)
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "anna" not in cookie


@pytest.mark.parametrize("token", ["", "wrong", "anna", "anna" * 17, "\u00e4" * 20, "x" * 100_000])
def test_14_a_wrong_token_opens_no_session(tenants: tuple[Paged, Path], token: str) -> None:
    """Nor does it say what was wrong with it."""
    before = len(tenants[0].site.sessions)
    answer = tenants[0].login(token)

    assert 401 == answer.status
    assert "set-cookie" not in answer.headers
    assert before == len(tenants[0].site.sessions)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://localhost:1"},
    ],
)
def test_15_another_site_cannot_log_a_browser_in(
    tenants: tuple[Paged, Path], headers: dict[str, str]
) -> None:
    """A form of another page is refused, so that nobody looks as somebody else unknowingly."""
    assert 403 == tenants[0].login("anna" * 16, headers=headers).status


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/a\r\nb: c"],
)
def test_16_after_login_one_stays_here(tenants: tuple[Paged, Path], target: str) -> None:
    """A link to the form cannot lead elsewhere from it."""
    assert "/" == tenants[0].login("anna" * 16, to=target).headers["location"]
    assert "/d/red" == tenants[0].login("anna" * 16, to="/d/red").headers["location"]


@pytest.mark.parametrize(
    "what", ["", "/samples", "/sample/0", "/file/0/3", "/versions", "/column/0"]
)
def test_17_a_tenant_sees_its_own_and_of_others_not_that_they_are(
    tenants: tuple[Paged, Path], what: str
) -> None:
    """A name of another tenant gives the answer of a name that there is not."""
    page, _ = tenants
    own = page.session("anna" * 16)

    theirs = page.ask(f"/d/blue{what}", headers=own)
    nobodys = page.ask(f"/d/gone{what}", headers=own)

    assert 404 == theirs.status == nobodys.status
    assert theirs.text.replace("blue", "gone") == nobodys.text
    assert "blue" not in page.ask("/", headers=own).text
    assert "red" in page.ask("/", headers=own).text
    if what != "/file/0/3":
        assert 200 == page.ask(f"/d/red{what}", headers=own).status


def test_18_places_of_data_are_told_to_nobody_but_the_operator(
    tenants: tuple[Paged, Path],
) -> None:
    """A tenant learns no path and no bucket."""
    page, tokens = tenants
    own = page.session("anna" * 16)

    assert str(tokens.parent) not in page.ask("/d/red", headers=own).text
    gone = page.ask(f"/d/red?v={'0' * 32}", headers=own)
    assert gone.status >= 400
    assert str(tokens.parent) not in gone.text


def test_19_a_token_that_is_taken_away_opens_nothing_any_more(tmp_path: Path) -> None:
    """Sessions end with it, without a restart."""
    write_dataset(str(tmp_path / "red"), small_table(10), shard_samples=[10])
    tokens = write_tokens(tmp_path / "tokens.json", {"anna": ["red"], "bert": ["*"]})
    with paged({"red": str(tmp_path / "red")}, tokens=tokens) as page:
        anna, bert = page.session("anna" * 16), page.session("bert" * 16)
        assert 200 == page.ask("/d/red", headers=anna).status

        write_tokens(tokens, {"bert": ["*"]})
        looks = 0
        # A token is looked for again some times a second.
        while page.ask("/d/red", headers=anna).status == 200 and looks < 1000:
            looks += 1

        assert 401 == page.ask("/d/red", headers=anna).status
        assert 200 == page.ask("/d/red", headers=bert).status


def test_20_after_logout_the_number_opens_nothing(tenants: tuple[Paged, Path]) -> None:
    """The browser forgets it, and so do we."""
    page, _ = tenants
    own = page.session("anna" * 16)

    assert 303 == page.ask("/logout", method="POST", headers=own).status
    assert 401 == page.ask("/", headers=own).status


def test_21_sessions_are_bounded_and_end() -> None:
    """One caller cannot push others' out, and none lasts."""
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.open("t", caller="anna")
    for _ in range(3 * MAX_PER_CALLER):
        sessions.open("u", caller="bert")

    assert 1 + MAX_PER_CALLER == len(sessions)
    assert "t" == sessions.token_of(first)
    for index in range(2 * MAX_SESSIONS):
        sessions.open("v", caller=str(index))
    assert MAX_SESSIONS == len(sessions)

    number = sessions.open("t", caller="anna")
    now[0] = IDLE_S
    assert sessions.token_of(number) is None
    number = sessions.open("t", caller="anna")
    for _ in range(int(LIFE_S / IDLE_S * 2) - 1):
        now[0] += IDLE_S / 2
        assert "t" == sessions.token_of(number)
    now[0] += IDLE_S / 2
    assert sessions.token_of(number) is None
    assert 0 == len(sessions)


# 3. What samples bring.


def _is_safe(text: str) -> bool:
    """Say whether a page has no element that a sample brought."""
    ours = re.sub(r'<script src="/static/page\.js" defer></script>', "", text)
    return not re.search(r"<script|<i>|onerror=document[^&]*>|<svg[^>]*onload", ours)


@pytest.mark.parametrize(
    "target", ["/d/hostile", "/d/hostile/samples", "/d/hostile/column/0", "/d/hostile/column/3"]
)
def test_22_text_stays_text(hostile: Paged, target: str) -> None:
    """No value and no name becomes an element, whatever it looks like."""
    answer = hostile.ask(target)

    assert 200 == answer.status
    assert _is_safe(answer.text)
    assert "7 * 7" in answer.text or target != "/d/hostile/samples"


@pytest.mark.parametrize("query", ["where", "ids", "at", "v", "mask", "boxes", "form", "random"])
@pytest.mark.parametrize("text", [SCRIPT, '"><script>1</script>', NAME])
def test_23_what_a_link_says_stays_text(hostile: Paged, query: str, text: str) -> None:
    """A link that somebody sends brings no element either."""
    answer = hostile.ask(f"/d/hostile/samples?{query}={quote(text)}")

    assert answer.status in {200, 400, 404}
    assert _is_safe(answer.text)
    assert _is_safe(hostile.ask(f"/login?to={quote(text)}").text)
    assert _is_safe(hostile.ask(f"/d/{quote(text, safe='')}").text)


def test_24_text_that_turns_around_turns_nothing_else_around(hostile: Paged) -> None:
    """Text is isolated; names, which stand in sentences, have such letters spelled out."""
    text = hostile.ask("/d/hostile/sample/1").text

    assert f'<bdi class="text whole">{TURNED}</bdi>' in text
    assert "\\u202e" in hostile.ask("/d/hostile").text
    assert "\u202e" not in hostile.ask("/d/hostile").text


def test_25_ten_megabytes_of_text_are_shown_in_part_and_that_is_said(hostile: Paged) -> None:
    """A browser gets some kilobytes."""
    answer = hostile.ask("/d/hostile/sample/2")

    assert len(answer.content) < 64 << 10
    assert "10,000,000 characters, the first 16,384 shown" in answer.text


def test_26_only_pictures_and_sounds_are_files_and_none_can_run(hostile: Paged) -> None:
    """The type is one of a list, told by the content; a file is a sandbox of its own."""
    for number, content in enumerate(FILES):
        answer = hostile.ask(f"/d/hostile/file/{number}/1")
        if answer.status == 200:
            assert answer.headers["content-type"] in TYPES
            assert content is not None
            assert content.startswith(b"\x89PNG")
        else:
            assert 415 == answer.status
            assert answer.headers["content-type"].startswith("text/plain")
        assert FILE_POLICY == answer.headers["content-security-policy"]
        assert "nosniff" == answer.headers["x-content-type-options"]
    assert not {"image/svg+xml", "text/html", "application/pdf"} & TYPES


def test_27_an_image_bomb_is_decoded_nowhere(hostile: Paged) -> None:
    """It says how large it would be, and neither we nor the browser unpack it."""
    answer = hostile.ask("/d/hostile/file/3/1")

    assert 415 == answer.status
    assert "60000 x 60000" in answer.text


def test_28_null_is_told_from_zero_and_from_nothing(hostile: Paged) -> None:
    """Three things that look alike are three things."""
    text = hostile.ask("/d/hostile/samples").text

    assert text.count(">null<") == 3
    assert text.count(">empty text<") == 1


@pytest.mark.parametrize(
    "target",
    [
        "/d/hostile/sample/-1",
        "/d/hostile/sample/7",
        "/d/hostile/sample/" + "9" * 400,
        "/d/hostile/sample/%00",
        "/d/hostile/samples?ids=0-999999999999",
        "/d/hostile/samples?ids=" + "0," * 1000,
        "/d/hostile/file/0/9",
        "/d/hostile/file/0/-1",
        "/d/hostile/column/999999999",
        "/d/hostile/samples?v=../../etc/passwd",
        "/d/hostile/samples?where=" + quote("(" * 2000),
        "/d/..%2F..%2Fetc%2Fpasswd",
        "/static/..%2Fapp.py",
        "/static/page.css%00",
    ],
)
def test_29_what_is_not_there_is_refused_in_words(hostile: Paged, target: str) -> None:
    """No number and no path gets further than a sentence."""
    answer = hostile.ask(target)

    assert answer.status in {400, 404}, answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("number", ["n", "at", "random"])
def test_30_numbers_are_bounded(hostile: Paged, number: str) -> None:
    """Whatever number a link names, a page has an end."""
    for text in ("9" * 18, "9" * 4000, "-1", "1e9", "\u0663"):
        answer = hostile.ask(f"/d/hostile/samples?{number}={quote(text)}")

        assert 200 == answer.status
        assert len(answer.content) < 1 << 20


@given(st.binary(max_size=300))
def test_31_no_bytes_bring_a_page_down(raw: bytes) -> None:
    """What is no HTTP is refused or cut, and the next request is answered."""
    page = _FUZZED[0]
    with socket.create_connection(page.address, timeout=30) as plain:
        plain.sendall(raw + b"\r\n\r\n")
        plain.shutdown(socket.SHUT_WR)
        try:
            first = plain.recv(1 << 16)
        except ConnectionResetError:
            first = b""

    assert not first or first.startswith(b"HTTP/1.1 ")
    assert b" 500 " not in first[:16]


_FUZZED: list[Paged] = []


@pytest.fixture(scope="module", autouse=True)
def _fuzzed(hostile: Paged) -> None:
    _FUZZED[:] = [hostile]


def test_32_an_address_that_is_taken_is_said(hostile: Paged) -> None:
    """The sentence says what to do."""
    host, port = hostile.address
    from headrace.page.app import make_app  # noqa: PLC0415
    from headrace.page.listen import Listener  # noqa: PLC0415

    with pytest.raises(ConfigurationError, match="cannot listen"):
        Listener(make_app(hostile.site, names=()), PageSettings(listen=f"{host}:{port}"))
    assert threading.active_count() < 100


@pytest.mark.long
def test_33_a_form_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    """A browser that sends a byte now and then holds its connection no longer than headers may."""
    write_dataset(str(tmp_path), small_table(10), shard_samples=[10])
    with paged({"red": str(tmp_path)}) as page, socket.create_connection(page.address) as plain:
        plain.sendall(_HALF_A_FORM)
        plain.settimeout(2 * BODY_S)
        began = time.monotonic()

        assert b"504" in plain.recv(4096).partition(b"\r\n")[0]
        assert time.monotonic() - began < 1.5 * BODY_S


def test_34_a_browser_that_goes_away_leaves_no_trace_in_the_log(
    hostile: Paged, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody fills a disk by hanging up."""
    for _ in range(20):
        with socket.create_connection(hostile.address) as plain:
            plain.sendall(_HALF_A_FORM)
            time.sleep(0.01)

    assert 200 == hostile.ask("/").status
    assert [] == [line for line in caplog.records if line.levelname in {"ERROR", "CRITICAL"}]


@pytest.mark.long
@pytest.mark.parametrize("target", ["/d/red/file/0/0", "/static/page.css"])
def test_35_a_browser_that_reads_nothing_is_cut_off(tmp_path: Path, target: str) -> None:
    """Neither one large answer nor thousands of small ones hold a connection for ever."""
    table = pa.table({"sound": pa.array([b"OggS" + bytes(8 << 20)], pa.binary())})
    write_dataset(str(tmp_path), table, shard_samples=[1])
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with paged({"red": str(tmp_path)}, request_s=0.2) as page:
        assert 200 == page.ask(target).status
        with socket.create_connection(page.address, timeout=30) as plain:
            plain.sendall(request * (4000 if "static" in target else 1))

            assert until(lambda: _connection_count(page) == 1)
            assert until(lambda: not _connection_count(page))


def _connection_count(page: Paged) -> int:
    """Return how many connections the page itself holds open."""
    _, *sockets = map(str.split, Path("/proc/net/tcp").read_text().splitlines())
    port = f":{page.address[1]:04X}"
    return sum(fields[1].endswith(port) and fields[3] == "01" for fields in sockets)


def test_36_no_address_writes_to_the_terminal_of_whoever_reads_the_log(
    hostile: Paged, caplog: pytest.LogCaptureFixture
) -> None:
    """Control characters are spelled out."""
    with caplog.at_level("INFO", logger="headrace"):
        assert 404 == hostile.ask("/d/none%1b%5b31m").status

    assert "none\\x1b[31m" in caplog.text
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-dest": "iframe"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-dest": "image"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-dest": "document"}, 200),
    ],
)
def test_37_another_site_may_link_here_but_load_nothing(
    hostile: Paged, headers: dict[str, str], status: int
) -> None:
    """Else it could let a visitor's browser run filters over all the visitor's data."""
    assert status == hostile.ask("/d/hostile/samples", headers=headers).status


_HALF_A_FORM = (
    b"POST /run HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\none="
)
