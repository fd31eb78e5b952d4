"""What a gateway keeps is a file that only its owner may read: whole or not at all, and of bounded size."""

import asyncio
import stat

import pytest

from forebay.app.kept_file import KeptFile
from forebay.domain.errors import ForebayError


def kept(path, bytes_max=1000):
    return KeptFile(path, "a roster", bytes_max)


def test_what_was_saved_is_loaded_and_what_was_dropped_is_gone(tmp_path):
    async def main():
        file = kept(tmp_path / "gateway-0.roster")
        assert await file.load() == b""
        await file.save(b"first")
        await file.save(b"second")
        assert await kept(tmp_path / "gateway-0.roster").load() == b"second"
        assert stat.S_IMODE((tmp_path / "gateway-0.roster").stat().st_mode) == 0o600
        assert [path.name for path in tmp_path.iterdir()] == ["gateway-0.roster"]
        await file.drop()
        await file.drop()
        assert await file.load() == b""

    asyncio.run(main())


def test_one_that_is_too_large_is_neither_written_nor_read(tmp_path):
    async def main():
        file = kept(tmp_path / "gateway-0.roster")
        await file.save(b"x" * 100)
        file = kept(tmp_path / "gateway-0.roster", 99)
        with pytest.raises(ForebayError, match="allowed: 99"):
            await file.save(b"x" * 100)
        with pytest.raises(ForebayError, match="more than 99 bytes"):
            await file.load()

    asyncio.run(main())


def test_a_disk_that_refuses_is_an_error_of_ours(tmp_path):
    async def main():
        (tmp_path / "folder").mkdir()
        for file in (kept(tmp_path / "folder"), kept(tmp_path / "none" / "gateway-0.roster")):
            with pytest.raises(ForebayError):
                await file.save(b"x")
        with pytest.raises(ForebayError):
            await kept(tmp_path / "folder").load()
        with pytest.raises(ForebayError):
            await kept(tmp_path / "folder").drop()

    asyncio.run(main())
