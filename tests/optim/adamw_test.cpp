// SPDX-License-Identifier: Apache-2.0
#include "deltaport/optim/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "deltaport/optim/global_norm.hpp"
#include "optim/threads.hpp"

namespace deltaport {
namespace {

const OptimizerConfig config{/*lr=*/1e-2, /*beta1=*/0.9, /*beta2=*/0.95, /*eps=*/1e-8, /*weight_decay=*/0.3};

/// A parameter set with decayed, undecayed and fused members, ends inside blocks of 64, and an optimizer over
/// it.
template <class T>
struct Fixture {
  Runtime runtime;
  ParameterSet<T> parameters;
  std::unique_ptr<AdamW<T>> optimizer;

  explicit Fixture(double grad_clip = 0.0, OptimizerConfig c = config) {
    parameters.declare("a.weight", Shape{13, 11}, true, {Initializer::Kind::normal, 0.5, 0});
    parameters.declare("a.norm", Shape{70}, false, {Initializer::Kind::ones, 0, 0});
    parameters.declare_fused({{"q", Shape{3, 5}, 0, true, {Initializer::Kind::normal, 0.5, 0}},
                              {"k", Shape{2, 5}, 0, true, {Initializer::Kind::normal, 0.5, 0}}});
    parameters.declare("b.scale", Shape{1}, false, {Initializer::Kind::normal, 1.0, 0});
    parameters.allocate(runtime);
    parameters.initialize(runtime, 5);
    optimizer = std::make_unique<AdamW<T>>(runtime, parameters, c, grad_clip);
  }

  /// Sets the gradients of step `step`; padding stays zero.
  void set_gradients(unsigned step) {
    std::vector<T> flat(static_cast<std::size_t>(parameters.flat_size()), T(0));
    std::mt19937 random(100 + step);
    std::normal_distribution<double> normal;
    for (const ParameterInfo& info : parameters.infos())
      for (std::int64_t i = 0; i < info.shape.size(); ++i)
        flat[static_cast<std::size_t>(info.offset + i)] = static_cast<T>(normal(random));
    copy_from_host(runtime.compute(), parameters.flat_gradients(), flat.data());
  }
  void step(double lr) { optimizer->step(runtime, lr, global_norm(runtime, parameters.flat_gradients())); }
  std::vector<T> values() { return to_vector(runtime.compute(), parameters.flat_values()); }
  std::vector<T> gradients() { return to_vector(runtime.compute(), parameters.flat_gradients()); }
  std::vector<T> m() { return to_vector(runtime.compute(), optimizer->exp_avg()); }
  std::vector<T> v() { return to_vector(runtime.compute(), optimizer->exp_avg_sq()); }
};

/// The textbook form, one parameter at a time, in double.
struct Oracle {
  std::vector<double> w, m, v;
  int t = 0;
  template <class T>
  explicit Oracle(const std::vector<T>& start) : w(start.begin(), start.end()), m(w.size()), v(w.size()) {}

  template <class T>
  void step(const std::vector<T>& g, const std::vector<ParameterInfo>& infos, double lr, double clip) {
    ++t;
    double square_sum = 0;
    for (const T x : g) square_sum += static_cast<double>(x) * x;
    const double scale = clip > 0 ? std::min(1.0, clip / (std::sqrt(square_sum) + 1e-6)) : 1.0;
    for (const ParameterInfo& info : infos)
      for (std::int64_t k = 0; k < info.shape.size(); ++k) {
        const auto i = static_cast<std::size_t>(info.offset + k);
        const double x = scale * static_cast<double>(g[i]);
        m[i] = config.beta1 * m[i] + (1 - config.beta1) * x;
        v[i] = config.beta2 * v[i] + (1 - config.beta2) * x * x;
        const double m_hat = m[i] / (1 - std::pow(config.beta1, t));
        const double v_hat = v[i] / (1 - std::pow(config.beta2, t));
        if (info.decay) w[i] *= 1 - lr * config.weight_decay;
        w[i] -= lr * m_hat / (std::sqrt(v_hat) + config.eps);
      }
  }
};

template <class T>
class AdamWTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(AdamWTest, Types);

template <class T>
void compare_with_oracle(double clip) {
  Fixture<T> f(clip);
  Oracle oracle(f.values());
  const double tolerance = std::is_same_v<T, float> ? 2e-6 : 1e-14;
  for (unsigned step = 0; step < 6; ++step) {
    const double lr = 1e-2 / (1 + step);
    f.set_gradients(step);
    f.step(lr);
    oracle.step(f.gradients(), f.parameters.infos(), lr, clip);
  }
  const auto w = f.values(), m = f.m(), v = f.v();
  for (std::size_t i = 0; i < w.size(); ++i) {
    ASSERT_NEAR(w[i], oracle.w[i], tolerance) << i;
    ASSERT_NEAR(m[i], oracle.m[i], tolerance) << i;
    ASSERT_NEAR(v[i], oracle.v[i], tolerance) << i;
  }
  EXPECT_EQ(f.optimizer->updates(f.runtime), 6);
}

TYPED_TEST(AdamWTest, FollowsTheTextbookWithoutClipping) {
  compare_with_oracle<TypeParam>(0.0);
}
TYPED_TEST(AdamWTest, FollowsTheTextbookWithClipping) {
  compare_with_oracle<TypeParam>(1.5);
}
TYPED_TEST(AdamWTest, ClippingAboveTheNormChangesNothing) {
  Fixture<TypeParam> off(0.0), on(1e6);
  off.set_gradients(1);
  on.set_gradients(1);
  off.step(1e-2);
  on.step(1e-2);
  EXPECT_EQ(off.values(), on.values());
}

TYPED_TEST(AdamWTest, DecayTouchesOnlyMarkedParametersAndPaddingStaysZero) {
  Fixture<TypeParam> f;
  const auto before = f.values();
  f.parameters.zero_gradients(f.runtime);
  f.step(0.5);
  const auto after = f.values();
  for (const ParameterInfo& info : f.parameters.infos()) {
    const auto i = static_cast<std::size_t>(info.offset);
    if (info.decay) {
      EXPECT_NEAR(after[i], before[i] * (1 - 0.5 * 0.3), 1e-6) << info.name;
    } else {
      EXPECT_EQ(after[i], before[i]) << info.name;
    }
  }
  f.set_gradients(0);
  f.step(0.5);
  EXPECT_EQ(f.values().back(), TypeParam(0));
  EXPECT_EQ(f.v().back(), TypeParam(0));
}

TYPED_TEST(AdamWTest, NonFiniteNormSkipsTheUpdateEntirely) {
  Fixture<TypeParam> f(1.0);
  f.set_gradients(0);
  f.step(1e-2);
  const auto w = f.values(), m = f.m(), v = f.v();
  for (const TypeParam bad :
       {std::numeric_limits<TypeParam>::quiet_NaN(), std::numeric_limits<TypeParam>::infinity()}) {
    auto gradients = f.gradients();
    gradients[17] = bad;
    copy_from_host(f.runtime.compute(), f.parameters.flat_gradients(), gradients.data());
    f.step(1e-2);
    EXPECT_EQ(f.values(), w);
    EXPECT_EQ(f.m(), m);
    EXPECT_EQ(f.v(), v);
    EXPECT_EQ(f.optimizer->updates(f.runtime), 1);
  }
  // The next good step goes on as if nothing had happened.
  Fixture<TypeParam> straight(1.0);
  straight.set_gradients(0);
  straight.step(1e-2);
  for (Fixture<TypeParam>* each : {&f, &straight}) {
    each->set_gradients(1);
    each->step(1e-2);
  }
  EXPECT_EQ(f.values(), straight.values());
}

template <class T>
std::vector<T> values_after_four_steps() {
  Fixture<T> f(0.7);
  for (unsigned step = 0; step < 4; ++step) {
    f.set_gradients(step);
    f.step(3e-3);
  }
  return f.values();
}

TYPED_TEST(AdamWTest, SameBitsFromRunToRun) {
  EXPECT_EQ(values_after_four_steps<TypeParam>(), values_after_four_steps<TypeParam>());
}

TYPED_TEST(AdamWTest, DISABLED_PrintBits) {
  test::print_bits(test::hash_bits(values_after_four_steps<TypeParam>()));
}

TEST(AdamWThreads, SameBitsForAnyThreadCount) {
  const std::string one = test::bits_with_threads(1, "AdamWTest/*.DISABLED_PrintBits");
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(test::bits_with_threads(2, "AdamWTest/*.DISABLED_PrintBits"), one);
  EXPECT_EQ(test::bits_with_threads(3, "AdamWTest/*.DISABLED_PrintBits"), one);
}

TYPED_TEST(AdamWTest, CountOfUpdatesCanBeRestored) {
  Fixture<TypeParam> straight, resumed;
  straight.set_gradients(0);
  straight.step(1e-2);
  straight.runtime.fence("test: another stream reads it now");
  copy(resumed.runtime.compute(), resumed.parameters.flat_values(), straight.parameters.flat_values());
  copy(resumed.runtime.compute(), resumed.optimizer->exp_avg(), straight.optimizer->exp_avg());
  copy(resumed.runtime.compute(), resumed.optimizer->exp_avg_sq(), straight.optimizer->exp_avg_sq());
  resumed.optimizer->set_updates(resumed.runtime, 1);
  resumed.runtime.fence("test: the source may change now");
  for (Fixture<TypeParam>* f : {&straight, &resumed}) {
    f->set_gradients(1);
    f->step(1e-2);
  }
  EXPECT_EQ(straight.values(), resumed.values());
}

// bfloat16 parameters, one of them exact: their masters take the very steps of a float32 model, and the
// values are the masters rounded to nearest even.
TEST(AdamWBfloat16, MastersAreThoseOfFloat32AndValuesTheirRounding) {
  Runtime runtime;
  const auto declare = [](auto& set) {
    set.declare("w", Shape{13, 11}, true, {Initializer::Kind::normal, 0.5, 0});
    set.declare("exact", Shape{70}, false, {Initializer::Kind::normal, 0.5, 0}, Kept::exact);
    set.declare("norm", Shape{65}, false, {Initializer::Kind::ones, 0, 0});
  };
  ParameterSet<bfloat16> half;
  ParameterSet<float> single;
  declare(half);
  declare(single);
  half.allocate(runtime);
  single.allocate(runtime);
  half.initialize(runtime, 5);
  single.initialize(runtime, 5);
  AdamW<bfloat16> half_optimizer(runtime, half, config, 0.9);
  AdamW<float> optimizer(runtime, single, config, 0.9);
  ASSERT_EQ(half.flat_size(), single.flat_size());
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 5; ++step) {
    std::vector<float> gradients(static_cast<std::size_t>(half.flat_size()), 0.0f);
    for (const ParameterInfo& info : half.infos())
      for (std::int64_t i = 0; i < info.shape.size(); ++i)
        gradients[static_cast<std::size_t>(info.offset + i)] = normal(random);
    copy_from_host(runtime.compute(), half.flat_gradients(), gradients.data());
    copy_from_host(runtime.compute(), single.flat_gradients(), gradients.data());
    half_optimizer.step(runtime, 1e-2, global_norm(runtime, half.flat_gradients()));
    optimizer.step(runtime, 1e-2, global_norm(runtime, single.flat_gradients()));
  }
  const auto masters = to_vector(runtime.compute(), half.flat_masters());
  EXPECT_EQ(masters, to_vector(runtime.compute(), single.flat_values()));
  EXPECT_EQ(to_vector(runtime.compute(), half_optimizer.exp_avg_sq()),
            to_vector(runtime.compute(), optimizer.exp_avg_sq()));
  const auto values = to_vector(runtime.compute(), half.flat_values());
  ASSERT_EQ(values.size(), static_cast<std::size_t>(half.flat_size() - 128));
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i].bits, bfloat16(masters[i]).bits) << i;
}

// An update far below the last place of a bfloat16 weight is not lost: it is the reason for masters.
TEST(AdamWBfloat16, SmallUpdatesAddUp) {
  Runtime runtime;
  ParameterSet<bfloat16> set;
  set.declare("w", Shape{64}, false, {Initializer::Kind::ones, 0, 0});
  set.allocate(runtime);
  set.initialize(runtime, 1);
  AdamW<bfloat16> optimizer(runtime, set, config, 0.0);
  const std::vector<float> gradients(64, 1.0f);
  copy_from_host(runtime.compute(), set.flat_gradients(), gradients.data());
  const auto norm = global_norm(runtime, set.flat_gradients());
  for (int step = 0; step < 200; ++step)
    optimizer.step(runtime, 1e-4, norm);  // each 1e-4, of 2^-8 for a last place
  EXPECT_NEAR(widen(to_vector(runtime.compute(), set.flat_values())[0]), 1.0f - 0.02f, 0x1p-9);
}

TEST(AdamWBfloat16, NeedsMasters) {
  Runtime runtime;
  ParameterSet<bfloat16> set;
  set.declare("w", Shape{64}, false, {});
  set.allocate(runtime, Purpose::inference);
  EXPECT_THROW(AdamW<bfloat16>(runtime, set, config, 0.0), Error);
}

int fences = 0;
void count_fence(const char*, const std::uint32_t, std::uint64_t*) {
  ++fences;
}

TEST(AdamWArguments, StepNeitherFencesNorAllocatesFromTheDriver) {
  Fixture<float> f(1.0);
  f.set_gradients(0);
  f.step(1e-2);
  const auto slabs = f.runtime.arena().stats().slab_requests;
  fences = 0;
  Kokkos::Tools::Experimental::set_begin_fence_callback(count_fence);
  f.step(1e-2);
  f.step(1e-2);
  Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
  EXPECT_EQ(fences, 0);
  EXPECT_EQ(f.runtime.arena().stats().slab_requests, slabs);
}

TEST(AdamWArguments, BadConstantsAndMixedFusedDecayAreRefused) {
  OptimizerConfig bad = config;
  bad.beta2 = 1.0;
  EXPECT_THROW(Fixture<float>(0.0, bad), ConfigError);
  bad = config;
  bad.eps = 0.0;
  EXPECT_THROW(Fixture<float>(0.0, bad), ConfigError);
  EXPECT_THROW(Fixture<float>(-1.0), ConfigError);
  Fixture<float> f;
  EXPECT_THROW(f.step(NAN), ConfigError);
  EXPECT_THROW(f.optimizer->step(f.runtime, 1e-2, Tensor<double>()), ShapeError);
  Runtime runtime;
  ParameterSet<float> mixed;
  mixed.declare_fused({{"q", Shape{3, 5}, 0, true, {}}, {"k", Shape{2, 5}, 0, false, {}}});
  EXPECT_THROW(AdamW<float>(runtime, mixed, config, 0.0), Error);
  mixed.allocate(runtime);
  EXPECT_THROW(AdamW<float>(runtime, mixed, config, 0.0), Error);
}

}  // namespace
}  // namespace deltaport
