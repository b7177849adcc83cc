#include "quire/kv_store/index_pages.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire::kv_store {
namespace {

using PageBytes = std::span<const std::byte>;

constexpr std::size_t kFileHeaderBytes = 100;                   // before the head of the first page
constexpr std::uint64_t kMaxRowBytes = std::uint64_t{8} << 20;  // more than the longest of ours
constexpr std::size_t kMaxColumns = 64;

enum PageKind : std::uint8_t {
  kIndexNode = 2,
  kTableNode = 5,
  kIndexLeaf = 10,
  kTableLeaf = 13,
};

std::uint64_t big_endian(PageBytes bytes) {
  std::uint64_t value = 0;
  for (const std::byte byte : bytes) {
    value = value << 8U | static_cast<std::uint64_t>(byte);
  }
  return value;
}

// Takes numbers off the front of some bytes. Past the end all are zero, and failed() is true.
class PageReader {
 public:
  explicit PageReader(PageBytes bytes) : rest_(bytes) {}

  PageBytes take(std::uint64_t count) {
    if (count > rest_.size()) {
      failed_ = true;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::uint64_t number(std::size_t bytes) { return big_endian(take(bytes)); }
  // Reads a number of 1 to 9 bytes: 7 bits of each, all 8 of the ninth.
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t byte = number(1);
      value = value << 7U | (byte & 127U);
      if ((byte & 128U) == 0) {
        return value;
      }
    }
    return value << 8U | number(1);
  }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  PageBytes rest_;
  bool failed_ = false;
};

// Reads a value of the type that a record's head gives, or nothing where the bytes hold none.
std::optional<PageValue> read_value(std::uint64_t type, PageReader& in) {
  constexpr std::array<std::size_t, 7> kNumberBytes = {0, 1, 2, 3, 4, 6, 8};
  if (type == 0) {
    return PageValue();
  }
  if (type < kNumberBytes.size()) {
    const std::size_t bytes = kNumberBytes[type];
    const auto unused = static_cast<unsigned>(64 - 8 * bytes);
    return static_cast<std::int64_t>(in.number(bytes) << unused) >> unused;  // with its sign
  }
  if (type == 7) {  // a time beyond 64 bits
    const auto fraction = std::bit_cast<double>(in.number(8));
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    return fraction < 0x1p63 && fraction > -0x1p63 ? static_cast<std::int64_t>(fraction) : kMost;
  }
  if (type == 8 || type == 9) {
    return static_cast<std::int64_t>(type - 8);
  }
  if (type < 13 || type % 2 == 0) {
    return std::nullopt;  // bytes: our tables have none
  }
  const PageBytes text = in.take((type - 13) / 2);
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

// Returns the values of a record, or nothing where the bytes are none.
std::optional<std::vector<PageValue>> read_record(PageBytes record) {
  PageReader sized(record);
  const std::uint64_t head_bytes = sized.varint();
  const std::size_t size_bytes = record.size() - sized.left();
  if (sized.failed() || head_bytes < size_bytes || head_bytes > record.size()) {
    return std::nullopt;
  }
  PageReader head(record.first(static_cast<std::size_t>(head_bytes)).subspan(size_bytes));
  PageReader body(record.subspan(static_cast<std::size_t>(head_bytes)));
  std::vector<PageValue> values;
  while (head.left() > 0 && values.size() < kMaxColumns) {
    auto value = read_value(head.varint(), body);
    if (!value || head.failed() || body.failed()) {
      return std::nullopt;
    }
    values.push_back(std::move(*value));
  }
  return head.left() == 0 && body.left() == 0 ? std::optional(std::move(values)) : std::nullopt;
}

// Pages, numbered from 1.
class Pages {
 public:
  Pages(PageBytes file, std::size_t page_bytes) : file_(file), page_bytes_(page_bytes) {}

  [[nodiscard]] std::uint64_t count() const { return file_.size() / page_bytes_; }
  [[nodiscard]] PageBytes page(std::uint64_t number) const {
    return file_.subspan(static_cast<std::size_t>(number - 1) * page_bytes_, page_bytes_);
  }
  [[nodiscard]] static std::size_t head_of(std::uint64_t number) {
    return number == 1 ? kFileHeaderBytes : 0;
  }
  [[nodiscard]] std::uint8_t kind_of(std::uint64_t number) const {
    return std::to_integer<std::uint8_t>(page(number)[head_of(number)]);
  }
  // Returns whether the page is there, and of the same tree as one of this kind.
  [[nodiscard]] bool is_child(std::uint64_t number, std::uint8_t kind) const {
    const bool table = kind == kTableNode;
    return number > 1 && number <= count() &&
           (kind_of(number) == (table ? kTableNode : kIndexNode) ||
            kind_of(number) == (table ? kTableLeaf : kIndexLeaf));
  }

  // Returns the record at the front of `in`, with its bytes on other pages.
  [[nodiscard]] std::optional<std::vector<std::byte>> payload(std::uint64_t bytes, bool in_table,
                                                              PageReader& in) const {
    if (bytes > kMaxRowBytes) {
      return std::nullopt;
    }
    const std::uint64_t most = in_table ? page_bytes_ - 35 : (page_bytes_ - 12) * 64 / 255 - 23;
    const std::uint64_t least = (page_bytes_ - 12) * 32 / 255 - 23;
    std::uint64_t here = bytes;
    if (bytes > most) {
      here = least + (bytes - least) % (page_bytes_ - 4);
      here = here <= most ? here : least;
    }
    const PageBytes start = in.take(here);
    std::vector<std::byte> record(start.begin(), start.end());
    std::uint64_t next = here < bytes ? in.number(4) : 0;
    while (record.size() < bytes) {
      if (in.failed() || next < 2 || next > count()) {
        return std::nullopt;
      }
      PageReader more(page(next));
      next = more.number(4);
      const PageBytes piece =
          more.take(std::min<std::uint64_t>(bytes - record.size(), more.left()));
      record.insert(record.end(), piece.begin(), piece.end());
    }
    return in.failed() ? std::nullopt : std::optional(std::move(record));
  }

 private:
  PageBytes file_;
  std::size_t page_bytes_;
};

// Reads one page of rows; false where one of them, or a page that it names, cannot be read.
class RowsOfPage {
 public:
  RowsOfPage(const Pages& pages, std::uint64_t number)
      : pages_(pages),
        page_(pages.page(number)),
        head_(Pages::head_of(number)),
        kind_(pages.kind_of(number)) {}

  bool read(const std::function<void(const PageRow&)>& visit) const {
    const bool node = kind_ == kTableNode || kind_ == kIndexNode;
    PageReader head(page_.subspan(head_ + 3));
    const std::uint64_t cells = head.number(2);
    head.take(3);
    bool whole = !node || pages_.is_child(head.number(4), kind_);
    PageReader places(page_.subspan(head_ + (node ? 12 : 8)));
    for (std::uint64_t i = 0; i < cells && places.left() >= 2; ++i) {
      whole = read_cell(places.number(2), node, visit) && whole;
    }
    return whole && cells * 2 <= page_.size();
  }

 private:
  bool read_cell(std::uint64_t place, bool node,
                 const std::function<void(const PageRow&)>& visit) const {
    if (place >= page_.size()) {
      return false;
    }
    PageReader in(page_.subspan(static_cast<std::size_t>(place)));
    const bool child = !node || pages_.is_child(in.number(4), kind_);
    if (kind_ == kTableNode) {
      return child;
    }
    const std::uint64_t bytes = in.varint();
    PageRow row{.has_id = kind_ == kTableLeaf};
    row.id = row.has_id ? static_cast<std::int64_t>(in.varint()) : 0;
    const auto record = pages_.payload(bytes, row.has_id, in);
    auto values = record ? read_record(*record) : std::nullopt;
    if (values) {
      row.values = std::move(*values);
      visit(row);
    }
    return child && values.has_value();
  }

  const Pages& pages_;
  PageBytes page_;
  std::size_t head_;
  std::uint8_t kind_;
};

// The running checksum of a log.
struct LogSum {
  std::uint32_t a = 0, b = 0;
  friend bool operator==(LogSum, LogSum) = default;

  void add(PageBytes bytes, bool big) {
    for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
      a += word(bytes.subspan(at, 4), big) + b;
      b += word(bytes.subspan(at + 4, 4), big) + a;
    }
  }
  static LogSum at(PageBytes bytes) {
    return {.a = static_cast<std::uint32_t>(big_endian(bytes.first(4))),
            .b = static_cast<std::uint32_t>(big_endian(bytes.subspan(4, 4)))};
  }

 private:
  static std::uint32_t word(PageBytes bytes, bool big) {
    const auto value = static_cast<std::uint32_t>(big_endian(bytes));
    return big ? value : __builtin_bswap32(value);
  }
};

constexpr std::size_t kLogHeadBytes = 32, kFrameHeadBytes = 24;

// Frames of a log, each with the sum behind it.
class LogFrames {
 public:
  LogFrames(PageBytes log, std::size_t page_bytes)
      : head_(log.first(kLogHeadBytes)),
        frames_(log.subspan(kLogHeadBytes)),
        frame_bytes_(kFrameHeadBytes + page_bytes),
        salt_(find_salt()) {}

  [[nodiscard]] std::size_t count() const { return frames_.size() / frame_bytes_; }
  [[nodiscard]] PageBytes frame(std::size_t index) const {
    return frames_.subspan(index * frame_bytes_, frame_bytes_);
  }
  [[nodiscard]] PageBytes page(std::size_t index) const {
    return frame(index).subspan(kFrameHeadBytes);
  }
  [[nodiscard]] std::uint64_t page_number(std::size_t index) const {
    return big_endian(frame(index).first(4));
  }
  // Returns the pages of the file behind a frame that ends a transaction, else 0.
  [[nodiscard]] std::uint64_t committed_pages(std::size_t index) const {
    return big_endian(frame(index).subspan(4, 4));
  }
  // Returns whether the frame is of this log, not left behind by an earlier one.
  [[nodiscard]] bool is_of_log(std::size_t index) const { return salt(index) == salt_; }
  // Returns whether it is as it was written, by the sum that the one before it gives.
  [[nodiscard]] bool is_whole(std::size_t index) const {
    const auto follows = [&](LogSum sum, bool big) {
      sum.add(frame(index).first(8), big);
      sum.add(page(index), big);
      return sum == LogSum::at(frame(index).subspan(16));
    };
    for (const bool big : {false, true}) {
      LogSum computed;
      computed.add(head_.first(24), big);
      const LogSum before =
          LogSum::at(index == 0 ? head_.subspan(24) : frame(index - 1).subspan(16));
      if (follows(before, big) || (index == 0 && follows(computed, big))) {
        return true;
      }
    }
    return false;
  }

 private:
  [[nodiscard]] std::uint64_t salt(std::size_t index) const {
    return big_endian(frame(index).subspan(8, 8));
  }
  // Returns the salt, which the head and every frame say. Where the head is damaged the frames
  // decide.
  [[nodiscard]] std::uint64_t find_salt() const {
    const bool head_is_whole = std::ranges::any_of(std::array{false, true}, [&](bool big) {
      LogSum sum;
      sum.add(head_.first(24), big);
      return sum == LogSum::at(head_.subspan(24));
    });
    const bool frames_agree = count() == 1 || (count() > 1 && salt(0) == salt(1));
    return frames_agree && !head_is_whole ? salt(0) : big_endian(head_.subspan(16, 8));
  }

  PageBytes head_, frames_;
  std::size_t frame_bytes_;
  std::uint64_t salt_;
};

}  // namespace

bool apply_log(std::span<const std::byte> log, std::size_t page_bytes,
               std::vector<std::byte>& file) {
  if (log.size() < kLogHeadBytes) {
    return log.empty();
  }
  const LogFrames frames(log, page_bytes);
  std::vector<bool> usable(frames.count());
  std::size_t committed = 0;
  std::uint64_t pages = 0;
  bool whole = true;
  for (std::size_t i = 0; i < frames.count(); ++i) {
    usable[i] = frames.is_of_log(i) && frames.is_whole(i);
    whole = whole && (usable[i] || !frames.is_of_log(i));
    if (usable[i] && frames.committed_pages(i) > 0) {
      committed = i + 1;
      pages = frames.committed_pages(i);
    }
  }
  // A file never has more pages than it had and its log brings.
  pages = std::min<std::uint64_t>(pages, file.size() / page_bytes + frames.count());
  if (committed > 0) {
    file.resize(static_cast<std::size_t>(pages) * page_bytes);
  }
  for (std::size_t i = 0; i < committed; ++i) {
    const std::uint64_t number = frames.page_number(i);
    whole = whole && usable[i];
    if (usable[i] && number > 0 && number <= pages) {
      const auto at = static_cast<std::ptrdiff_t>((number - 1) * page_bytes);
      std::ranges::copy(frames.page(i), file.begin() + at);
    }
  }
  return whole;
}

bool for_each_row(std::span<const std::byte> file, std::size_t page_bytes,
                  const std::function<void(const PageRow&)>& visit) {
  const Pages pages(file, page_bytes);
  bool whole = file.size() % page_bytes == 0;
  for (std::uint64_t number = 2; number <= pages.count(); ++number) {
    switch (pages.kind_of(number)) {
      case kTableNode:
      case kTableLeaf:
      case kIndexNode:
      case kIndexLeaf:
        whole = RowsOfPage(pages, number).read(visit) && whole;
        break;
      default:  // free, or more of a row
        break;
    }
  }
  return whole;
}

}  // namespace quire::kv_store
