"""bayespg push and pull."""

import http.server
import threading

import pytest
from typer.testing import CliRunner

import bayespg
from bayespg.agents import share
from bayespg.cli import app


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "cartpole.bayespg"
    bayespg.BAC("CartPole-v1", policy="linear", seed=3).save(path)
    return path


def test_a_folder_gets_the_file_and_its_card(saved, tmp_path):
    where = share.push(saved, str(tmp_path / "there"))
    assert bayespg.load(where).config["seed"] == 3
    text = (tmp_path / "there" / "cartpole.bayespg.md").read_text()
    assert "A policy for CartPole-v1" in text
    assert "bayespg.load('cartpole.bayespg')" in text
    back = share.pull(where, tmp_path / "back.bayespg")
    assert back.read_bytes() == saved.read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        share.pull(where, back)


def test_a_place_that_is_none_is_named(saved, tmp_path):
    with pytest.raises(ValueError, match=r"^to: expected .*found ftp://there"):
        share.push(saved, "ftp://there")
    with pytest.raises(ValueError, match=r"^source: expected .*found ftp://there"):
        share.pull("ftp://there")
    with pytest.raises(ValueError, match=r"^source: .*nothing does not exist; give a file"):
        share.pull(str(tmp_path / "nothing"))


def test_a_run_is_sent_with_its_last_row(tmp_path):
    agent = bayespg.PGPE("CartPole-v1", seed=1)
    agent.learn(episodes=1, run=tmp_path / "run", progress=False)
    where = share.push(tmp_path / "run", str(tmp_path), name="mine")
    assert "environment steps so far: " in (tmp_path / "mine.bayespg.md").read_text()
    again = bayespg.load(where)
    assert int(again.state.updates) == int(agent.state.updates)


class Server(http.server.BaseHTTPRequestHandler):
    kept: dict[str, bytes] = {}

    def do_PUT(self):
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()

    def do_GET(self):
        content = self.kept.get(self.path)
        self.send_response(404 if content is None else 200)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_):
        pass


def test_a_web_server_gets_and_gives_it(saved, tmp_path):
    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        base = f"http://127.0.0.1:{server.server_port}"
        where = share.push(saved, f"{base}/policies/")
        assert where == f"{base}/policies/cartpole.bayespg"
        path = share.pull(where, tmp_path / "x.bayespg")
        assert path.read_bytes() == saved.read_bytes()
        with pytest.raises(OSError, match="404"):
            share.pull(f"{base}/nothing.bayespg", tmp_path / "y.bayespg")
        Server.kept["/bad"] = b"<html>"
        with pytest.raises(ValueError, match="/bad: not a saved agent"):
            share.pull(f"{base}/bad", tmp_path / "y.bayespg")
        assert not (tmp_path / "y.bayespg").exists()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_commands_say_where_it_is(saved, tmp_path):
    sent = CliRunner().invoke(app, ["push", str(saved), str(tmp_path)])
    assert sent.exit_code == 0, sent.output
    assert "cartpole.bayespg" in sent.output
    back = str(tmp_path / "back.bayespg")
    fetched = CliRunner().invoke(app, ["pull", str(tmp_path / "cartpole.bayespg"), "--out", back])
    assert fetched.exit_code == 0, fetched.output
    assert bayespg.load(back).config["seed"] == 3
