// SPDX-License-Identifier: Apache-2.0
#include "offload/pool_kinds.hpp"

namespace deltaport::offload::test {

INSTANTIATE_TEST_SUITE_P(Kinds, Pool,
                         ::testing::Values(PoolKind{"machine", machine_source},
                                           PoolKind{"blocked", blocked_source}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace deltaport::offload::test
