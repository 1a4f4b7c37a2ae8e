/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include "intern.h"
#include "perf_record.h"

#include "group.cdef"
