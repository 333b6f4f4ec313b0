// Entry of the replay host in a page: tests inject it into the built window, the dev server into its page.

import { openReplay } from './host';

window.openHost = () => openReplay(new URLSearchParams(location.search));
