// No id converts to another, or from a number.
#include "quire/base/ids.h"

#include <cstdint>

#include "quire/types.h"

namespace quire {

void end_sequence(SeqId sequence);
void release_block(BlockId block);
void abort_request(RequestId request);

void call() {
  constexpr SeqId kSequence{1};
  constexpr BlockId kBlock{2};
  constexpr RequestId kRequest{3};
  end_sequence(kSequence);
  release_block(kBlock);
  abort_request(kRequest);
#if QUIRE_BAD == 1
  end_sequence(kBlock);
#elif QUIRE_BAD == 2
  abort_request(7);
#elif QUIRE_BAD == 3
  const RequestId request = 7;
#elif QUIRE_BAD == 4
  const std::int32_t index = kBlock;
#elif QUIRE_BAD == 5
  const bool equal = kSequence == kRequest;
#endif
}

}  // namespace quire
