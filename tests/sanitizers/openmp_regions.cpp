// SPDX-License-Identifier: Apache-2.0
// Shows the thread sanitizer how an OpenMP region begins and ends. GCC's OpenMP library is not instrumented: without
// this, everything that a region's threads read from the code before it, and everything that the code after it reads
// from them, looks like a race. Races inside a region stay visible.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  char begin, end;  // only their addresses matter
};

void run_body(void* argument) {
  auto& region = *static_cast<Region*>(argument);
  __tsan_acquire(&region.begin);
  region.body(region.data);
  __tsan_release(&region.end);
}

}  // namespace

/// Stands in front of the library's function, which compilers call for `#pragma omp parallel`.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  using Function = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto library_function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data, 0, 0};
  __tsan_release(&region.begin);
  library_function(run_body, &region, threads, flags);
  __tsan_acquire(&region.end);
}
