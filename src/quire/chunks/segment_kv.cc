#include "quire/chunks/segment_kv.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "quire/base/check.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::chunks {

Result<SegmentKV> SegmentKV::open(kv_store::PagedPool& pool, std::span<const kv::BlockRef> blocks,
                                  bool reads) {
  SegmentKV made(pool);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const kv::FormatId format = blocks[i].format();
    if (made.parts_.empty() || made.parts_.back().format != format) {
      made.parts_.push_back({.format = format, .first = static_cast<std::int32_t>(i)});
    }
    made.parts_.back().blocks.push_back(blocks[i].id);
  }
  for (Part& part : made.parts_) {
    if (!pool.on_device()) {
      continue;
    }
    QUIRE_TRY(part.copy,
              pool.create_beside(static_cast<std::int32_t>(part.blocks.size()), part.format));
    if (reads) {
      QUIRE_TRY_STATUS(pool.read_blocks(part.blocks, part.copy->all_bytes(), part.format));
    }
  }
  return made;
}

const SegmentKV::Part& SegmentKV::part_of(std::int32_t index) const {
  for (const Part& part : parts_) {
    if (index < part.first + std::ssize(part.blocks)) {
      return part;
    }
  }
  QUIRE_CHECK(false, "there is no such block");
}

tensor::PagedKVView SegmentKV::view(int layer, std::int32_t index) const {
  const Part& part = part_of(index);
  return part.copy ? part.copy->view(layer) : pool_->view(layer, part.format);
}

std::int32_t SegmentKV::block(std::int32_t index) const {
  const Part& part = part_of(index);
  const std::int32_t within = index - part.first;
  return part.copy ? within : part.blocks[static_cast<std::size_t>(within)].value;
}

Status SegmentKV::write_back() {
  for (Part& part : parts_) {
    if (part.copy) {
      QUIRE_TRY_STATUS(pool_->write_blocks(part.blocks, part.copy->all_bytes(), part.format));
    }
  }
  return {};
}

}  // namespace quire::chunks
