// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "deltaport/offload/offloader.hpp"
#include "offload/movers.hpp"

namespace deltaport::offload {
namespace {

using test::movers;

/// Saves what `save` saves as one group per layer, on hosts as they are, and takes it back.
class Plain {
 public:
  explicit Plain(OffloaderOptions options = movers(1), std::size_t budget = 0)
      : pool_(make_numa_slab_source({}), test::small_slabs(budget)),
        offloader_(arena_, pool_, make_transfer_queue(ExecutionSpace()), std::move(options)) {
    saved_.set_mover(&offloader_);
  }
  Tensor<float> tensor(float value, std::int64_t elements = 1024) {
    const auto x = allocate<float>(arena_, "tensor", Shape{elements});
    std::fill(x.data(), x.data() + elements, value);
    return x;
  }
  template <class Save>
  void forward(int layers, const Save& save, const char* scope = "scope") {
    for (int i = 0; i < layers; ++i) {
      saved_.open(scope);
      save(i);
      saved_.commit();
    }
  }
  void backward(int tensors) {
    for (int i = 0; i < tensors; ++i) saved_.take<float>();
  }
  void passes(int count, int layers) {
    for (int i = 0; i < count; ++i) {
      forward(layers, [&](int n) { saved_.save(tensor(static_cast<float>(n))); });
      backward(layers);
    }
  }
  Arena& arena() { return arena_; }
  SavedTensors& saved() { return saved_; }
  PinnedPool& pool() { return pool_; }
  Offloader& offloader() { return offloader_; }

 private:
  Arena arena_{{.slab_bytes = std::size_t{1} << 20}};
  PinnedPool pool_;
  Offloader offloader_;
  SavedTensors saved_;
};

TEST(Offloader, LaterPassesTakeNoHostMemoryAndTheSameAddresses) {
  Plain plain;
  plain.passes(1, 6);
  const PinnedPoolStats before = plain.pool().stats();
  const std::size_t slabs = plain.arena().stats().slab_requests;
  std::vector<std::vector<const float*>> addresses(2);
  for (auto& list : addresses) {
    plain.forward(6, [&](int) { plain.saved().save(plain.tensor(1.0F)); });
    for (int i = 0; i < 6; ++i) list.push_back(plain.saved().take<float>().data());
  }
  EXPECT_EQ(addresses[0], addresses[1]);
  const PinnedPoolStats after = plain.pool().stats();
  EXPECT_EQ(after.hits + after.misses, before.hits + before.misses);
  EXPECT_EQ(plain.arena().stats().slab_requests, slabs);
  // Five of the six groups of the plan have memory of their own, and none of it holds anything.
  const OffloadStats stats = plain.offloader().take_stats();
  EXPECT_EQ(stats.host_in_use, 0);
  EXPECT_EQ(stats.host_reserved, 5 * 4096);
  EXPECT_EQ(after.asked, 5U * 4096U);
}

TEST(Offloader, NothingIsLeftInThePool) {
  Arena arena;
  PinnedPool pool(make_numa_slab_source({}), test::small_slabs());
  {
    Offloader offloader(arena, pool, make_transfer_queue(ExecutionSpace()), movers(1));
    SavedTensors saved;
    saved.set_mover(&offloader);
    for (int i = 0; i < 3; ++i) {
      saved.open("scope");
      saved.save(allocate<float>(arena, "saved", Shape{1000}));
      saved.commit();
    }
    EXPECT_EQ(pool.stats().blocks, 3U);
  }
  EXPECT_EQ(pool.stats().blocks, 0U);
  EXPECT_EQ(pool.stats().in_use, 0U);
}

TEST(Offloader, OnlyNamedScopesMove) {
  Plain plain;
  for (int pass = 0; pass < 2; ++pass) {
    plain.forward(
        3, [&](int) { plain.saved().save(plain.tensor(1.0F)); }, "other");
    plain.backward(3);
  }
  EXPECT_EQ(plain.offloader().take_stats().transfers.to_host_bytes, 0);
}

TEST(Offloader, ViewsAndDuplicatesMoveOnce) {
  Plain plain;
  for (int pass = 0; pass < 3; ++pass) {
    plain.forward(3, [&](int n) {
      const auto x = plain.tensor(static_cast<float>(n));
      plain.saved().save(x.rows(512, 768));
      plain.saved().save(x.rows(256, 600));
      plain.saved().save(x.rows(512, 768));
      plain.saved().save(Tensor<float>());
    });
    for (int n = 3; n-- > 0;) {
      EXPECT_FALSE(plain.saved().take<float>().defined());
      const auto last = plain.saved().take<float>(), wide = plain.saved().take<float>(),
                 first = plain.saved().take<float>();
      EXPECT_EQ(first.data(), last.data());
      EXPECT_EQ(first.data(), wide.data() + 256);
      EXPECT_EQ(first.extent(0), 256);
      EXPECT_EQ(wide.extent(0), 344);
      for (const auto& x : {first, wide})
        EXPECT_TRUE(std::all_of(x.data(), x.data() + x.extent(0),
                                [n](float v) { return v == static_cast<float>(n); }));
    }
  }
  const OffloadStats stats = plain.offloader().take_stats();
  // Only what they cover: elements 256 to 768. Three groups in the warm-up, then two.
  EXPECT_EQ(stats.transfers.to_host_bytes, (3 + 2 + 2) * 512 * 4);
  EXPECT_EQ(stats.freed, (2 + 2 + 2) * 1024 * 4);
}

TEST(Offloader, WhatSomebodyElseKeepsIsMovedOnceAndNeverAgain) {
  Plain plain;
  std::vector<Tensor<float>> kept;
  for (int pass = 0; pass < 3; ++pass) {
    plain.forward(4, [&](int) {
      const auto shared = plain.tensor(1.0F), own = plain.tensor(2.0F);
      kept.push_back(shared);
      plain.saved().save(shared);
      plain.saved().save(own);
    });
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(plain.saved().take<float>().data()[7], 2.0F);
      const auto shared = plain.saved().take<float>();
      EXPECT_EQ(shared.data(), kept[static_cast<std::size_t>(3 - i)].data());
      EXPECT_EQ(shared.data()[7], 1.0F);
    }
    kept.clear();
    const OffloadStats stats = plain.offloader().take_stats();
    const auto notes = plain.offloader().take_notes();
    EXPECT_EQ(stats.transfers.to_host_bytes, (pass == 0 ? 8 : 3) * 4096);
    EXPECT_EQ(stats.useless, (pass == 0 ? 3 : 0) * 4096);
    EXPECT_EQ(stats.freed, 3 * 4096);
    ASSERT_EQ(notes.size(), pass == 0 ? 1U : 0U);
    for (const std::string& note : notes)
      EXPECT_NE(note.find("'tensor' (group scope)"), std::string::npos) << note;
  }
}

TEST(Offloader, TensorsInTwoGroupsStay) {
  Plain plain;
  for (int pass = 0; pass < 2; ++pass) {
    const auto both = plain.tensor(1.0F);
    plain.forward(4, [&](int) { plain.saved().save(both); });
    plain.backward(4);
    EXPECT_EQ(plain.offloader().take_stats().transfers.to_host_bytes, pass == 0 ? 4 * 4096 : 0);
  }
}

TEST(Offloader, TheThresholdCountsElementsOfOneTensor) {
  OffloaderOptions options = movers(1);
  options.min_tensor_elements = 1000;
  Plain plain(options);
  for (int pass = 0; pass < 2; ++pass) {
    plain.forward(3, [&](int) {
      plain.saved().save(plain.tensor(1.0F, 999));
      plain.saved().save(plain.tensor(1.0F, 1000));
    });
    plain.backward(6);
  }
  EXPECT_EQ(plain.offloader().take_stats().transfers.to_host_bytes, (3 + 2) * 4000);
  options.min_tensor_elements = 2000;
  Plain none(options);
  none.passes(2, 3);
  EXPECT_EQ(none.offloader().take_stats().transfers.to_host_bytes, 0);
  EXPECT_TRUE(none.offloader().schedule().plan().empty());
}

TEST(Offloader, NoFractionNeverCopies) {
  Plain plain(movers(1, 0.0));
  plain.passes(3, 5);
  EXPECT_EQ(plain.offloader().take_stats().transfers.to_host_bytes, 0);
  EXPECT_EQ(plain.pool().stats().retained_peak, plain.pool().stats().retained);
  EXPECT_EQ(plain.pool().stats().hits + plain.pool().stats().misses, 0U);
}

TEST(Offloader, OtherShapesAndOtherNumbersOfGroupsWork) {
  Plain plain;
  for (const int size : {1024, 512, 2048, 2048, 512, 512}) {
    for (const int layers : {5, 3, 6}) {
      plain.forward(layers, [&](int n) { plain.saved().save(plain.tensor(static_cast<float>(n), size)); });
      for (int n = layers; n-- > 0;) {
        const auto x = plain.saved().take<float>();
        EXPECT_TRUE(
            std::all_of(x.data(), x.data() + size, [n](float v) { return v == static_cast<float>(n); }));
      }
    }
  }
  EXPECT_EQ(plain.offloader().take_stats().host_in_use, 0);
  EXPECT_EQ(plain.arena().stats().allocated, 0U);
}

TEST(Offloader, APlanThatThePoolCannotHoldIsRefusedWithAFraction) {
  const std::size_t slab = std::size_t{1} << 20;
  Plain plain(movers(1), slab);
  const auto pass = [&] {
    plain.forward(9, [&](int) { plain.saved().save(plain.tensor(1.0F, 65536)); });
    plain.backward(9);
  };
  try {
    pass();
    FAIL() << "eight blocks of 256 KiB fit in 1 MiB";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(std::string(e.what()).find("8 groups need 2097152 bytes"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("offload.fraction to 0.5"), std::string::npos) << e.what();
  }
  // A warm-up that needs more than the plan does is no error.
  Plain fits(movers(1, 0.5), slab);
  for (int i = 0; i < 2; ++i) {
    fits.forward(9, [&](int) { fits.saved().save(fits.tensor(1.0F, 65536)); });
    fits.backward(9);
  }
  EXPECT_GE(fits.offloader().take_stats().transfers.to_host_bytes, 2 * 4 * 262144);
}

// Groups of different sizes, below and above what shares a slab: what the message tells does, and hardly less does.
TEST(Offloader, TheRemediesOfARefusedPlanWork) {
  const auto refusal = [](std::size_t limit, double fraction) {
    Plain plain(movers(1, fraction), limit);
    try {
      for (int i = 0; i < 3; ++i) {
        plain.forward(9,
                      [&](int n) { plain.saved().save(plain.tensor(1.0F, n % 3 == 0 ? 65536 : 1000 * n)); });
        plain.backward(9);
      }
    } catch (const OutOfMemory& e) {
      return std::string(e.what());
    }
    EXPECT_EQ(plain.offloader().take_stats().useless, 0);
    return std::string();
  };
  const auto number_after = [](const std::string& text, const std::string& words) {
    const std::size_t at = text.find(words);
    EXPECT_NE(at, std::string::npos) << text;
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + words.size()));
  };
  // Three of 256 KiB and 1, 2, 4, 5 and 7 thousand floats, in lines of 256 bytes: together in whole pages.
  const std::string first = refusal(800000, 1.0);
  const auto needed = static_cast<std::size_t>(number_after(first, "groups need "));
  EXPECT_EQ(needed, 864256U);
  EXPECT_EQ(refusal(needed, 1.0), "");
  EXPECT_NE(refusal(needed - 1, 1.0), "");
  for (const std::size_t limit : {800000U, 700000U, 540672U, 300000U, 266240U, 262144U}) {
    const double fraction = number_after(refusal(limit, 1.0), "offload.fraction to ");
    EXPECT_EQ(refusal(limit, fraction), "") << limit << ' ' << fraction;
    EXPECT_NE(refusal(limit, fraction + 0.01), "") << limit << ' ' << fraction;
  }
  EXPECT_NE(refusal(262143, 1.0).find("Not even one of them fits: raise offload.pinned_limit"),
            std::string::npos);
}

TEST(Offloader, RefusesWrongUse) {
  EXPECT_THROW(Plain(OffloaderOptions{}), ConfigError);  // no scopes
  OffloaderOptions negative = movers(1);
  negative.min_tensor_elements = -1;
  EXPECT_THROW(Plain{negative}, ConfigError);
  Plain plain;
  plain.forward(2, [&](int) { plain.saved().save(plain.tensor(1.0F)); });
  EXPECT_THROW(plain.saved().set_mover(nullptr), Error);
  plain.backward(1);
  EXPECT_THROW(plain.forward(1, [&](int) { plain.saved().save(plain.tensor(1.0F)); }), Error);
  plain.saved().clear();
  plain.passes(2, 3);
}

}  // namespace
}  // namespace deltaport::offload
