// SPDX-License-Identifier: Apache-2.0
// An outside program that reads a run's configuration and builds something from every layer it needs.
#include <cstdio>

#include "deltaport/config/load.hpp"
#include "deltaport/core/version.hpp"

int main() {
  deltaport::LoadRequest request;
  request.overrides = {"--train.steps=700"};
  request.data = deltaport::DataSection::optional;
  const auto loaded = deltaport::load_config(request);
  std::printf("deltaport %s: %lld steps\n", deltaport::version,
              static_cast<long long>(loaded.config.train.steps));
  return loaded.config.train.steps == 700 ? 0 : 1;
}
