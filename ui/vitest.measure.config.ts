// Measurements in the browser: `npm run measure`.

import browser from './vitest.browser.config';

export default { ...browser, test: { ...browser.test, include: ['tests/ui/**/*.measure.ts'] } };
