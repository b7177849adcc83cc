// Any bytes as an entry file: an error, or an entry whose objects can be read and verified, and
// that is exported and imported again as it is. The first byte says how the rest is meant: 0, a
// whole file; else the length of a header (2 bytes), the header and what follows it, to be sealed
// with right checksums first, since chance would never find them.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"

namespace {

using namespace quire::kv_store;  // NOLINT

// A store of this process in memory, gone with it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = "/dev/shm/quire_fuzz_XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { std::filesystem::remove_all(folder); }

  std::filesystem::path folder;
};

void write_whole(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

void write_sealed(const ScratchFolder& scratch, const std::string& name,
                  std::span<const std::byte> bytes) {
  if (bytes.size() < 2) {
    return write_whole(scratch.folder / name, bytes);
  }
  const auto wanted =
      std::to_integer<std::size_t>(bytes[0]) + 256 * std::to_integer<std::size_t>(bytes[1]);
  const auto rest = bytes.subspan(2);
  const auto header = rest.first(std::min(wanted, rest.size()));
  const auto front = static_cast<std::int64_t>(kPreambleBytes + header.size());
  const auto folder = Folder::open(scratch.folder);
  auto file = NewFile::create(*folder, name);
  static_cast<void>(
      write_at(file->descriptor(), rest.subspan(header.size()), front, scratch.folder));
  const auto size = static_cast<std::int64_t>(kPreambleBytes + rest.size());
  static_cast<void>(write_front(FileKind::kEntry, header, size, *file));
  static_cast<void>(file->commit(false));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  static const ScratchFolder scratch;
  static Store store =
      Store::open(scratch.folder / "store", {.grace_ms = 0, .write = {.sync = false}}).value();
  static int runs = 0;
  if (++runs % 256 == 0) {
    QUIRE_CHECK(store.collector().gc().ok(), "objects of refused files go");
  }
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.empty()) {
    return 0;
  }
  const auto file = scratch.folder / "file.qke", again = scratch.folder / "again.qke";
  if (bytes[0] == std::byte{0}) {
    write_whole(file, bytes.subspan(1));
  } else {
    write_sealed(scratch, "file.qke", bytes.subspan(1));
  }
  const auto entry = store.files().import_entry(file, "fuzz");
  if (!entry.ok()) {
    QUIRE_CHECK(store.entries().list().value().empty(), "a refused entry leaves none");
    return 0;
  }
  for (const std::string& hash : objects_of(*entry)) {
    QUIRE_CHECK(store.objects().open(hash).value().verify().ok(), "what was imported is whole");
  }
  QUIRE_CHECK(store.files().export_entry(entry->key, "fuzz", again).ok(), "it can be exported");
  QUIRE_CHECK(store.remover().remove(entry->key, "fuzz").value(), "and removed");
  QUIRE_CHECK(store.files().import_entry(again, "fuzz").value().parts == entry->parts,
              "and comes back");
  QUIRE_CHECK(store.remover().remove(entry->key, "fuzz").value(), "");
  return 0;
}
