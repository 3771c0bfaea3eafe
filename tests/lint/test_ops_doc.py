"""The pages of ops say what the tables say."""

from tools import make_ops_doc


def test_pages_of_ops_are_up_to_date() -> None:
    for page in make_ops_doc.PAGES:
        path = make_ops_doc.FOLDER / f"{page.name}.md"
        assert path.read_text(encoding="utf-8") == make_ops_doc.text(page), (
            f"{path.name} is out of date: python -m tools.make_ops_doc"
        )
